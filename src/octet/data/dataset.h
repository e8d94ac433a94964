// What a run trains on: sources with weights, packed, split and shuffled. Everything is a pure function of the options and a
// sample number; there is no state to save but that number.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "octet/data/corpus.h"
#include "octet/data/mixture.h"
#include "octet/data/split.h"
#include "octet/data/windows.h"

namespace octet::data {

struct Source {
  std::filesystem::path path;  // prefix of a prepared corpus
  double weight = 1.0;         // share of the samples, relative to the other sources of the same part
  Use use = Use::unnamed;      // unnamed: cut by `split`
};

struct DatasetOptions {
  std::vector<Source> sources;
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;                      // of the order; the split does not depend on it
  std::array<double, 2> split = {0.98, 0.02};  // train, held out; of every source where none is named validation
  std::int64_t vocab_size = 0;                 // of the model; a token beyond it is Error{data}
};

// Immutable; every function may be called from many threads at once.
class Dataset {
 public:
  // Opens and checks every source. Throws Error{data} for a corpus that is missing, broken, smaller than one window or made
  // with another tokenizer than the others; Error{config} for weights or a split that make no sense.
  explicit Dataset(DatasetOptions options);

  const DatasetOptions& options() const { return options_; }
  std::int64_t seq_len() const { return options_.seq_len; }
  std::int64_t sources() const { return static_cast<std::int64_t>(sources_.size()); }
  const Corpus& corpus(std::int64_t source) const;
  std::int64_t train_windows(std::int64_t source) const;
  // Whether anything is trained on; whether this source is.
  bool trains() const { return train_.mixture.has_value(); }
  bool trains_on(std::int64_t source) const {
    return options_.sources.at(static_cast<std::size_t>(source)).use != Use::validation;
  }
  // Corpus::verify_once() of every source.
  void verify_once() const;

  // Training windows of all sources together: the samples of one epoch. With several sources their weights decide how often
  // each window is seen meanwhile.
  std::int64_t samples_per_epoch() const { return count(Part::train); }
  std::int64_t held_out_samples() const { return count(Part::held_out); }

  // Training sample number `position` >= 0, without end: each source is gone through in a new order in each of its epochs.
  void train_sample(std::int64_t position, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base = 0) const;
  // Held-out sample i in [0, held_out_samples()), in an order that never changes; with several sources they are drawn by
  // weight, so that the first few already stand for the whole.
  void held_out_sample(std::int64_t i, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base = 0) const;

 private:
  struct PreparedSource {
    std::unique_ptr<Corpus> corpus;
    Windows windows;
    Split split;
  };
  // The sources that give a part its samples, by weight.
  struct Drawn {
    std::vector<std::int64_t> sources;
    std::optional<Mixture> mixture;  // none without sources
  };
  Drawn drawn(const std::vector<std::int64_t>& sources) const;
  std::int64_t count(Part part) const;

  DatasetOptions options_;
  std::vector<PreparedSource> sources_;
  Drawn train_, held_out_;
};

}  // namespace octet::data
