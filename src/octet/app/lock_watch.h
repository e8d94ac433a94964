// Tells a supervisor whether ranks that it cannot reach still train: the process that holds run.lock raises its counter.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "octet/base/clock.h"
#include "octet/checkpoint/run_lock.h"

namespace octet::app {

class LockWatch {
 public:
  explicit LockWatch(std::filesystem::path run_folder) : folder_(std::move(run_folder)) {}
  // Forgets what the counter did until now.
  void restart();
  // Looks at run.lock; to be called several times in kStillS. Throws Error if it cannot be read.
  void look();
  // Whether the counter has grown, and not stood still for kStillS since then.
  bool grows() const { return grew_ && still_s() < kStillS; }
  // Whether nobody held the lock when this object looked last.
  bool is_free() const { return has_looked_ && seen_.empty(); }
  // For how long the counter has stood still while this object watched it, or there was no lock.
  double still_s() const { return has_looked_ ? seconds_since(since_) : 0; }

  // Two beats of a holder and some more. Whoever takes the folder over waits for kSilenceS, as RunLock does.
  static constexpr double kStillS = 2.4 * checkpoint::RunLockTimes().beat_s;
  static constexpr double kSilenceS = checkpoint::RunLockTimes().silence_s;

 private:
  std::filesystem::path folder_;
  bool has_looked_ = false, grew_ = false;
  std::string seen_;  // the holder and its counter
  Clock::time_point since_;
};

}  // namespace octet::app
