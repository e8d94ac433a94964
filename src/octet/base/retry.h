// Retries operations that failed for a reason that may pass.
#pragma once

#include "octet/base/clock.h"
#include "octet/base/system_call.h"

namespace octet {

// How long reads are retried after the first error, unless a run sets another limit (checkpoint.retry_s).
inline constexpr double kRetryS = 60;

class BackOff {
 public:
  explicit BackOff(double limit_s) : limit_s_(limit_s) {}
  // Waits before the next attempt: 50 ms at first, each time twice as long, at most 5 s. The first wait prints a warning.
  // Throws `error` instead if it cannot pass by itself (SystemError::may_pass()) or if `limit_s` seconds are over, which the
  // message then says.
  void wait_after(const SystemError& error);

 private:
  double limit_s_, next_s_ = 0.05;
  bool waited_ = false;
  Clock::time_point start_;
};

// Returns act(). While act() throws SystemError, waits and calls it again, as BackOff describes.
template <class Act>
auto retry(double limit_s, Act&& act) {
  for (BackOff back_off(limit_s);;) {
    try {
      return act();
    } catch (const SystemError& error) {
      back_off.wait_after(error);
    }
  }
}

}  // namespace octet
