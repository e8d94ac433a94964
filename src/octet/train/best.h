// The best evaluation of a run so far: what evaluation.keep_best keeps, and when evaluation.patience ends the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/writer.h"
#include "octet/telemetry/metrics.h"
#include "octet/train/config_evaluation.h"

namespace octet::train {

class Best {
 public:
  // `measure` says what the losses are means of (HeldOut::measure()).
  Best(const EvaluationConfig& config, nlohmann::json measure) : config_(config), measure_(std::move(measure)) {}

  // Records the loss of an evaluation after `step`. Returns whether it is the lowest so far. A loss that is not finite counts for
  // nothing: patience must not end a run that skips its steps as if it had learnt all it could.
  bool observe(std::int64_t step, double loss);
  // Whether anything depends on what is best.
  bool acts() const { return config_.keep_best || config_.patience > 0; }
  // Whether evaluation.patience evaluations since the best one were not the best.
  bool is_stale() const { return config_.patience > 0 && waited_ >= config_.patience; }

  std::int64_t step() const { return found_.empty() ? 0 : found_.front().step; }              // 0 before the first finite loss
  double loss() const { return found_.empty() ? telemetry::kUnknown : found_.front().loss; }  // NaN before it
  std::int64_t waited() const { return waited_; }  // finite evaluations since the best one

  // The best step by losses of other held-out text, until there is a best checkpoint again; 0: none.
  std::int64_t former() const { return former_; }

  // Says that the checkpoint of step() is saved only because it is the best.
  void save_extra() { extra_.push_back(step()); }
  // Drops the steps that need not be known any more. `exists` says whether there is a checkpoint of a step.
  void forget_deleted(const std::function<bool(std::int64_t step)>& exists);
  // For Writer::save(). Nothing unless evaluation.keep_best.
  checkpoint::BestCheckpoint checkpoint() const;

  nlohmann::json state() const;
  // Goes on from a state(), which is null in checkpoints of earlier versions. With evaluation.keep_best the best evaluation is
  // the last one whose checkpoint exists. Begins anew if there is none, or if the losses there were means of something else; then
  // the best checkpoint of those is kept as former(). Returns why, or "".
  std::string restore(const nlohmann::json& state, const std::function<bool(std::int64_t step)>& exists);

 private:
  EvaluationConfig config_;
  nlohmann::json measure_;
  std::int64_t waited_ = 0, former_ = 0;
  struct Evaluation {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::vector<Evaluation> found_;  // the best evaluations, the last and best one first
  std::vector<std::int64_t>
      extra_;  // steps whose checkpoints were saved only because they were the best; some are no longer in found_
};

}  // namespace octet::train
