// The held-out sets of a run: one for each [[evaluation.source]], or else the held-out part of data.source.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "octet/telemetry/metrics.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

class HeldOut {
 public:
  // `dataset` is the run's, and must outlive this object. Throws Error{data} if a named set cannot be read or has another
  // tokenizer than the run's corpora, or if no token in the evaluated sequences of a set is trained on.
  HeldOut(const Config& config, const data::Dataset& dataset);

  // Whether there is text to evaluate. The held-out part of data.source may be empty; a named set never is.
  bool any() const { return sequences_ > 0 && deciding().held_out_samples() > 0; }
  // The set that decides which evaluation is best, and its name, which is "" if sets have no names.
  const data::Dataset& deciding() const { return *sets_[decides_].dataset; }
  const std::string& deciding_name() const { return sets_[decides_].name; }
  const data::Dataset& set(std::size_t i) const { return *sets_.at(i).dataset; }  // in the order of the configuration
  // The number of sequences that are evaluated in each set; fewer if a set is smaller.
  std::int64_t sequences() const { return sequences_; }
  // Describes the tokens of which the deciding loss is a mean. Losses of two runs can be compared only if this is the same.
  nlohmann::json measure() const;

  // Check every named set; see Dataset::verify_once() and check_tokenizer().
  void verify_once() const;
  void check_tokenizers(const std::string& tokenizer) const;

  struct Losses {
    double deciding = telemetry::kUnknown;  // NaN if there is no text
    telemetry::NamedNumbers by_name;        // empty if sets have no names, or if sequences() is 0
  };
  // The mean losses over the first sequences() of each set. Collective: all ranks call it.
  Losses evaluate(Engine& engine) const;

 private:
  struct Set {
    std::string name;
    std::unique_ptr<data::Dataset> own;  // null for the held-out part of data.source
    const data::Dataset* dataset;
  };
  std::vector<Set> sets_;
  std::size_t decides_ = 0;
  std::int64_t sequences_ = 0;
};

}  // namespace octet::train
