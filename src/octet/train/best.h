// Tracks the best evaluation of a run so far, which evaluation.keep_best keeps and from which evaluation.patience counts.
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
  // `measure` says over which tokens the losses are means (HeldOut::measure()).
  Best(const EvaluationConfig& config, nlohmann::json measure) : config_(config), measure_(std::move(measure)) {}

  // Records the loss of an evaluation after `step`. Returns whether it is the lowest so far. Ignores a loss that is not finite,
  // so that patience does not end a run that skips its steps as if it had stopped improving.
  bool observe(std::int64_t step, double loss);
  // Whether the run does anything with the best evaluation.
  bool acts() const { return config_.keep_best || config_.patience > 0; }
  // Whether the last evaluation.patience evaluations were not the best.
  bool is_stale() const { return config_.patience > 0 && waited_ >= config_.patience; }

  std::int64_t step() const { return found_.empty() ? 0 : found_.front().step; }              // 0 before the first finite loss
  double loss() const { return found_.empty() ? telemetry::kUnknown : found_.front().loss; }  // NaN before it
  std::int64_t waited() const { return waited_; }  // finite evaluations since the best one

  // The best step by losses on other held-out text, until there is a best checkpoint again; 0: none.
  std::int64_t former() const { return former_; }

  // Records that the checkpoint of step() is saved only because it is the best.
  void save_extra() { extra_.push_back(step()); }
  // Drops the steps that need not be remembered any more. `exists` says whether there is a checkpoint of a step.
  void forget_deleted(const std::function<bool(std::int64_t step)>& exists);
  // Returns the argument of Writer::save(). Empty unless evaluation.keep_best is set.
  checkpoint::BestCheckpoint checkpoint() const;

  nlohmann::json state() const;
  // Continues from a state(), which is null in checkpoints of earlier versions. With evaluation.keep_best, the best evaluation
  // is the last one whose checkpoint exists. Begins anew if there is none, or if the earlier losses were means over other text;
  // then their best checkpoint is kept as former(). Returns why it begins anew, or "".
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
