#include "octet/train/snapshot_pace.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace octet::train {
namespace {

constexpr std::int64_t kFarthest = 100'000;  // steps

// The fewest steps that take `seconds`.
std::int64_t steps_in(double seconds, double step_s) {
  const double steps = step_s > 0 ? std::ceil(seconds / step_s) : 1;
  return std::clamp(static_cast<std::int64_t>(std::min(steps, 1e9)), std::int64_t{1}, kFarthest);
}

}  // namespace

std::optional<SnapshotPace> SnapshotPace::parse(const std::string& text) {
  if (text == "auto") return SnapshotPace(std::nullopt);
  std::int64_t every = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, every);
  if (error != std::errc() || end != last || every < 0) return std::nullopt;
  return SnapshotPace(every);
}

bool SnapshotPace::due(std::int64_t step) {
  if (every_) return *every_ > 0 && step % *every_ == 0;
  if (!next_) next_ = step + 1;
  return step >= *next_;
}

SnapshotPace SnapshotPace::of(const CheckpointConfig& config, int ranks) {
  SnapshotPace pace = *parse(config.memory_every);
  pace.mtbf_s_ = 3600 * config.mtbf_hours / ranks;
  pace.farthest_ = config.interval > 0 ? config.interval : kFarthest;
  return pace;
}

// A snapshot every T seconds costs the share cost_s / T for itself, and T / (2 mtbf_s) for steps that are repeated. The sum is
// least at T = sqrt(2 cost_s mtbf_s): J. W. Young, "A first order approximation to the optimum checkpoint interval",
// Communications of the ACM 17 (1974). Beyond cost_s / kLeastShare there is little to gain, and people and other programs end
// processes, too.
double SnapshotPace::auto_s(double cost_s) const {
  const double affordable_s = cost_s / kMostShare;
  if (mtbf_s_ <= 0) return affordable_s;
  return std::max(affordable_s, std::min(std::sqrt(2 * cost_s * mtbf_s_), cost_s / kLeastShare));
}

std::int64_t SnapshotPace::apart(double cost_s, double step_s) const {
  const std::int64_t affordable = steps_in(cost_s / kMostShare, step_s);
  if (mtbf_s_ <= 0) return affordable;
  // The nearest number of steps costs little more than the best time.
  return std::max(affordable, std::min(steps_in(auto_s(cost_s) - step_s / 2, step_s), farthest_));
}

void SnapshotPace::took(std::int64_t step, double cost_s, double step_s) { next_ = step + apart(cost_s, step_s); }

std::int64_t SnapshotPace::between(double cost_s, double step_s, std::int64_t least) const {
  if (!every_) return std::max(least, apart(cost_s, step_s));
  return *every_ * std::max<std::int64_t>(1, least / *every_ + (least % *every_ > 0));
}

}  // namespace octet::train
