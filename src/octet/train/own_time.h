// The own time of a rank: the time of its steps without the waits for other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace octet::train {

class OwnTime {
 public:
  // The first step of a process is left out, because it loads kernels and fills caches.
  void add(double seconds) {
    if (!std::exchange(warm_, true)) return;
    sum_ += seconds;
    ++steps_;
  }
  // Returns the mean over the steps since the last call, in seconds, or nothing if there were none.
  std::optional<double> take() {
    if (steps_ == 0) return std::nullopt;
    return std::exchange(sum_, 0) / static_cast<double>(std::exchange(steps_, 0));
  }

 private:
  bool warm_ = false;
  double sum_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace octet::train
