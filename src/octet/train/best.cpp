#include "octet/train/best.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "octet/base/require.h"

namespace octet::train {

bool Best::observe(std::int64_t step, double loss) {
  const bool best = std::isfinite(loss) && !(loss >= loss_);
  if (best) {
    loss_ = loss;
    waited_ = 0;
    steps_.insert(steps_.begin(), step);
  } else {
    ++waited_;
  }
  return best;
}

void Best::forget_deleted(const std::function<bool(std::int64_t)>& exists) {
  std::erase_if(extra_, [&](std::int64_t step) { return step != this->step() && !exists(step); });
  if (!config_.keep_best && steps_.size() > 1) steps_.resize(1);
  // The best one may not have been saved yet. Until it is, the first of the others that exists stays.
  const auto kept = std::find_if(steps_.begin() + (steps_.empty() ? 0 : 1), steps_.end(), exists);
  if (kept != steps_.end()) steps_.erase(kept + 1, steps_.end());
}

checkpoint::BestCheckpoint Best::checkpoint() const {
  if (!config_.keep_best) return {};
  return {.steps = steps_, .extra = extra_};
}

nlohmann::json Best::state() const {
  return {{"measure", measure_}, {"loss", loss_}, {"waited", waited_}, {"steps", steps_}, {"extra", extra_}};
}

std::string Best::restore(const nlohmann::json& state, const std::function<bool(std::int64_t)>& exists) {
  *this = Best(config_, std::move(measure_));
  if (!state.is_object()) return "";
  extra_ = state.at("extra").get<std::vector<std::int64_t>>();
  std::erase_if(extra_, [&](std::int64_t step) { return !exists(step); });
  const auto steps = state.at("steps").get<std::vector<std::int64_t>>();
  if (steps.empty()) return "";
  const std::string begins = "; the next evaluation is the best again";
  if (state.at("measure") != measure_) {
    return concat("the best evaluation, of step ", steps.front(), ", was of other held-out text", begins);
  }
  if (config_.keep_best && !exists(steps.front())) {
    return concat("the checkpoint of the best evaluation, of step ", steps.front(), ", is gone", begins);
  }
  steps_ = steps;
  loss_ = state.at("loss").get<double>();
  waited_ = state.at("waited").get<std::int64_t>();
  return "";
}

}  // namespace octet::train
