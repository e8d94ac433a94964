#include "octet/train/best.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "octet/base/require.h"

namespace octet::train {

bool Best::observe(std::int64_t step, double loss) {
  const bool best = std::isfinite(loss) && !(loss >= this->loss());
  if (best) {
    waited_ = 0;
    found_.insert(found_.begin(), {step, loss});
  } else if (std::isfinite(loss)) {
    ++waited_;
  }
  return best;
}

void Best::forget_deleted(const std::function<bool(std::int64_t)>& exists) {
  std::erase_if(extra_, [&](std::int64_t step) { return step != this->step() && !exists(step); });
  if (!config_.keep_best && found_.size() > 1) found_.resize(1);
  // The best one may not have been saved yet. Until then, the first of the others that exists is kept.
  const auto kept = std::find_if(found_.begin() + (found_.empty() ? 0 : 1), found_.end(),
                                 [&](const Evaluation& evaluation) { return exists(evaluation.step); });
  if (kept != found_.end()) found_.erase(kept + 1, found_.end());
  if (!found_.empty() && exists(step())) former_ = 0;
}

checkpoint::BestCheckpoint Best::checkpoint() const {
  if (!config_.keep_best) return {};
  checkpoint::BestCheckpoint result{.steps = {}, .extra = extra_};
  for (const Evaluation& evaluation : found_) result.steps.push_back(evaluation.step);
  if (former_ > 0) result.steps.push_back(former_);
  return result;
}

nlohmann::json Best::state() const {
  nlohmann::json steps = nlohmann::json::array(), losses = nlohmann::json::array();
  for (const Evaluation& evaluation : found_) {
    steps.push_back(evaluation.step);
    losses.push_back(evaluation.loss);
  }
  return {{"measure", measure_}, {"waited", waited_}, {"steps", steps},
          {"losses", losses},    {"extra", extra_},   {"former", former_}};
}

std::string Best::restore(const nlohmann::json& state, const std::function<bool(std::int64_t)>& exists) {
  *this = Best(config_, std::move(measure_));
  if (!state.is_object()) return "";
  const auto steps = state.at("steps").get<std::vector<std::int64_t>>();
  const auto losses = state.at("losses").get<std::vector<double>>();
  require(steps.size() == losses.size(), "the best evaluations: ", steps.size(), " steps and ", losses.size(), " losses");
  const std::string begins = "; the next evaluation is the best again";
  auto kept = steps;
  kept.push_back(state.value("former", std::int64_t{0}));  // absent in checkpoints of earlier versions
  if (state.at("measure") != measure_) {
    const auto former = std::find_if(kept.begin(), kept.end(), exists);
    if (config_.keep_best && former != kept.end()) former_ = *former;
    return steps.empty() ? ""
                         : concat("the best evaluation, of step ", steps.front(), ", was of other held-out sequences", begins);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!config_.keep_best || exists(steps[i])) found_.push_back({steps[i], losses[i]});
  }
  if (config_.keep_best && exists(kept.back())) former_ = kept.back();
  if (!steps.empty() && found_.empty()) {
    return concat("there is no checkpoint of the best evaluation, of step ", steps.front(), begins);
  }
  extra_ = state.at("extra").get<std::vector<std::int64_t>>();
  std::erase_if(extra_, [&](std::int64_t step) { return !exists(step); });
  // Earlier versions counted evaluations before the first finite loss.
  if (!found_.empty()) waited_ = state.at("waited").get<std::int64_t>();
  return "";
}

}  // namespace octet::train
