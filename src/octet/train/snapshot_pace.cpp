#include "octet/train/snapshot_pace.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace octet::train {
namespace {

constexpr double kShare = 0.01;              // of the time, for snapshots
constexpr std::int64_t kFarthest = 100'000;  // steps

// The fewest steps among which a snapshot costs at most kShare of the time.
std::int64_t affordable(double cost_s, double step_s) {
  const double steps = step_s > 0 ? std::ceil(cost_s / (kShare * step_s)) : 1;
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

void SnapshotPace::took(std::int64_t step, double cost_s, double step_s) { next_ = step + affordable(cost_s, step_s); }

std::int64_t SnapshotPace::between(double cost_s, double step_s, std::int64_t least) const {
  if (!every_) return std::max(least, affordable(cost_s, step_s));
  return *every_ * std::max<std::int64_t>(1, least / *every_ + (least % *every_ > 0));
}

}  // namespace octet::train
