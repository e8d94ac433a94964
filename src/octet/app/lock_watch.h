// Tells a supervisor whether ranks that it cannot reach still train: the process that holds run.lock then raises its counter.
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
  // Reads run.lock. Call it several times in kStillS. Throws Error if the file cannot be read.
  void look();
  // Whether the counter has grown within the last kStillS.
  bool grows() const { return grew_ && still_s() < kStillS; }
  // Whether nobody held the lock when this object looked last.
  bool is_free() const { return has_looked_ && seen_.empty(); }
  // How many seconds the counter has not changed, or there was no lock, while this object watched it.
  double still_s() const { return has_looked_ ? seconds_since(since_) : 0; }

  // Two beats of a holder and some margin. A process that takes the folder over waits for kSilenceS, as RunLock does.
  static constexpr double kStillS = 2.4 * checkpoint::RunLockTimes().beat_s;
  static constexpr double kSilenceS = checkpoint::RunLockTimes().silence_s;

 private:
  std::filesystem::path folder_;
  bool has_looked_ = false, grew_ = false;
  std::string seen_;  // the holder and its counter
  Clock::time_point since_;
};

}  // namespace octet::app
