#include "octet/train/anomaly.h"

#include <numeric>

#include "octet/base/require.h"

namespace octet::train {

Anomaly::Verdict Anomaly::observe(double loss, bool found_inf) {
  if (found_inf) {
    ++skipped_;
    if (++in_a_row_ < kSkipsInARow) return Verdict::skipped;
    in_a_row_ = 0;
    reason_ = concat(kSkipsInARow, " steps in a row had a loss or gradient that is not finite");
    return Verdict::roll_back;
  }
  in_a_row_ = 0;
  if (losses_.size() >= kFewest) {
    const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
    if (loss > kSpikeFactor * mean) {
      reason_ = concat("loss ", loss, " is above ", kSpikeFactor, " times ", mean, ", the mean of the last ", losses_.size(), " steps");
      return Verdict::roll_back;
    }
  }
  losses_.push_back(loss);
  if (losses_.size() > kWindow) losses_.pop_front();
  return Verdict::fine;
}

nlohmann::json Anomaly::state() const { return {{"losses", losses_}, {"skipped", skipped_}, {"in_a_row", in_a_row_}}; }

void Anomaly::restore(const nlohmann::json& state) {
  losses_ = state.at("losses").get<std::deque<double>>();
  skipped_ = state.at("skipped").get<std::int64_t>();
  in_a_row_ = state.at("in_a_row").get<int>();
}

}  // namespace octet::train
