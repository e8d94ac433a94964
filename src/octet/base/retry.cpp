#include "octet/base/retry.h"

#include <algorithm>
#include <thread>

#include "octet/base/log.h"

namespace octet {

void BackOff::wait_after(const SystemError& error) {
  if (!error.may_pass() || limit_s_ <= 0) throw error;
  if (!waited_) {
    start_ = Clock::now();
    log_warning(concat(error.what(), "; trying again for ", limit_s_, " s"));
  }
  waited_ = true;
  const double left_s = limit_s_ - seconds_since(start_);
  if (left_s <= 0) {
    throw SystemError(error.code(), concat(error.what(), ", also after ", limit_s_, " s of trying again"), error.number());
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(std::min(next_s_, left_s)));
  next_s_ = std::min(2 * next_s_, 5.0);
}

}  // namespace octet
