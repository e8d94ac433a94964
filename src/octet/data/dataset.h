// The samples of a run: weighted sources, split into training and held-out parts, packed into windows and shuffled. Each sample
// is a pure function of the options and the sample's number, so a checkpoint stores this number and nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "octet/data/corpus.h"
#include "octet/data/mixture.h"
#include "octet/data/remainder.h"
#include "octet/data/split.h"
#include "octet/data/windows.h"

namespace octet::data {

struct Source {
  std::filesystem::path path;  // prefix of a prepared corpus
  double weight = 1.0;         // share of the samples, relative to the other sources of the same part
  Use use = Use::unnamed;
};

struct DatasetOptions {
  std::vector<Source> sources;
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;                      // of the order of the training samples; the split does not depend on it
  std::array<double, 2> split = {0.98, 0.02};  // {train, held out} fractions of every Use::unnamed source, unless a source is
                                               // Use::validation: then an unnamed source is trained on whole
  SplitBy split_by = SplitBy::documents;
  std::int64_t vocab_size = 0;  // of the model; reading a token outside it throws Error{data}
  Corpus::Mask mask = Corpus::Mask::read;
  Packing packing = Packing::stream;
  double retry_s = kRetryS;  // how long reading is tried again after an error that may pass
};

// Samples that a run has used in another order: with another seq_len, or with another seed.
struct Stretch {
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;
  std::int64_t samples = 0;
};

// Immutable after continue_after(); then every function may be called from many threads at once.
class Dataset {
 public:
  // Opens and checks every source. Throws Error{data} if a corpus is missing, broken, smaller than one window or was made with a
  // different tokenizer from the others. Throws Error{config} for an invalid weight or split.
  explicit Dataset(DatasetOptions options);

  const DatasetOptions& options() const { return options_; }
  std::int64_t seq_len() const { return options_.seq_len; }
  std::int64_t sources() const { return static_cast<std::int64_t>(sources_.size()); }
  const Corpus& corpus(std::int64_t source) const;
  std::int64_t train_windows(std::int64_t source) const;
  // The text in which the training windows of a source lie.
  const Windows& training_text(std::int64_t source) const {
    return sources_.at(static_cast<std::size_t>(source)).split.training_text();
  }
  // Whether the run trains on any source.
  bool trains() const { return train_.mixture.has_value(); }
  // Whether the run trains on this source.
  bool trains_on(std::int64_t source) const {
    return options_.sources.at(static_cast<std::size_t>(source)).use != Use::validation;
  }
  // Calls Corpus::verify_once() for every source.
  void verify_once() const;

  // Places sample number 0 after the samples of `stretches`, in the order in which they were used. The rest of each source's
  // epoch is what the stretches have left of it (remainder.h). Sources and weights must be those of the stretches. Throws
  // Error{config} if another seq_len would hold out other text. Takes up to a microsecond for each sample of the present epoch.
  void continue_after(std::span<const Stretch> stretches);
  // Returns the number of samples, over all sources, that are left of the epochs in which continue_after() began.
  std::int64_t samples_left() const;

  // The number of samples in one epoch: the training windows of all sources together. With several sources, the weights decide
  // how often a window of each source is used in an epoch.
  std::int64_t samples_per_epoch() const { return count(Part::train); }
  std::int64_t held_out_samples() const { return count(Part::held_out); }

  // Writes training sample number `position` >= 0 to `row`; see Windows::read() for the other arguments. The samples never end:
  // each source starts again, in a new order, when all its windows have been seen.
  void train_sample(std::int64_t position, Row row, std::vector<std::int32_t>& document_starts, std::int32_t base = 0) const;
  // Writes sample i of an evaluation to `row`. The evaluation reads `samples` of the held_out_samples(), in an order that never
  // changes. If it reads all, it reads each held-out window once. Otherwise it draws from several sources by weight, so that
  // its samples represent all sources; a source that runs out begins again.
  void held_out_sample(std::int64_t i, std::int64_t samples, Row row, std::vector<std::int32_t>& document_starts,
                       std::int32_t base = 0) const;

 private:
  struct PreparedSource {
    std::unique_ptr<Corpus> corpus;
    Split split;
    // The first samples are the windows of `rest`, if it is there, in epoch `epoch` - 1. Whole epochs follow, beginning with
    // `epoch`.
    std::optional<Remainder> rest = {};
    std::int64_t epoch = 0;
  };
  // The sources of one part and how their samples are mixed.
  struct Drawn {
    std::vector<std::int64_t> sources;
    std::optional<Mixture> mixture;  // nothing if there are no sources
  };
  Drawn drawn(const std::vector<std::int64_t>& sources) const;
  // Held-out window number i of all sources, one source after the other.
  Mixture::Draw held_out_window(std::int64_t i) const;
  std::int64_t count(Part part) const;

  DatasetOptions options_;
  std::vector<PreparedSource> sources_;
  Drawn train_, held_out_;
};

}  // namespace octet::data
