#include "octet/train/snapshot_pace.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace octet::train {
namespace {

constexpr double kShare = 0.01;              // of the time, for snapshots
constexpr std::int64_t kFarthest = 100'000;  // steps

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

void SnapshotPace::took(std::int64_t step, double cost_s, double step_s) {
  const double steps = step_s > 0 ? std::ceil(cost_s / (kShare * step_s)) : 1;
  next_ = step + std::clamp(static_cast<std::int64_t>(std::min(steps, 1e9)), std::int64_t{1}, kFarthest);
}

}  // namespace octet::train
