#include "octet/app/lock_watch.h"

#include <optional>
#include <utility>

#include "octet/base/require.h"

namespace octet::app {

void LockWatch::restart() {
  has_looked_ = grew_ = false;
  since_ = Clock::now();
}

void LockWatch::look() {
  std::string now;
  try {
    const std::optional<checkpoint::LockHolder> holder = checkpoint::lock_holder(folder_);
    if (holder) now = concat(holder->run, " ", holder->counter);
  } catch (const Error&) {
    return restart();
  }
  if (!has_looked_) {
    has_looked_ = true;
    seen_ = now;
    since_ = Clock::now();
  } else if (now != seen_) {
    // A lock that goes is the end of a holder, and no sign of life.
    grew_ = !now.empty();
    seen_ = std::move(now);
    since_ = Clock::now();
  }
}

LockWatch::Verdict LockWatch::verdict() const {
  if (!has_looked_) return Verdict::unknown;
  const double still_s = seconds_since(since_);
  if (grew_ && still_s < silence_s_ / 2) return Verdict::grows;
  return still_s >= silence_s_ ? Verdict::stands_still : Verdict::unknown;
}

}  // namespace octet::app
