#include "octet/app/lock_watch.h"

#include <optional>
#include <utility>

#include "octet/base/require.h"

namespace octet::app {

void LockWatch::restart() { has_looked_ = grew_ = false; }

void LockWatch::look() {
  const std::optional<checkpoint::LockHolder> holder = checkpoint::lock_holder(folder_);
  std::string now = holder ? concat(holder->run, " ", holder->counter) : "";
  if (!has_looked_) {
    has_looked_ = true;
    seen_ = now;
    since_ = Clock::now();
  } else if (now != seen_) {
    // If the lock is gone, its holder has ended, which is no sign that a process trains.
    grew_ = !now.empty();
    seen_ = std::move(now);
    since_ = Clock::now();
  }
}

}  // namespace octet::app
