// Tells a supervisor whether ranks that it cannot reach still train: the process that holds run.lock raises its counter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "octet/base/clock.h"
#include "octet/checkpoint/run_lock.h"

namespace octet::app {

class LockWatch {
 public:
  enum class Verdict : std::uint8_t { unknown, grows, stands_still };

  explicit LockWatch(std::filesystem::path run_folder, double silence_s = checkpoint::RunLockTimes().silence_s)
      : folder_(std::move(run_folder)), silence_s_(silence_s) {}
  // Forgets what the counter did until now.
  void restart();
  // Looks at run.lock; to be called about once a second. A folder that cannot be read is as good as one that was never watched.
  void look();
  // `grows` if the counter grew in the last half of silence_s, `stands_still` if it did not for all of it. A lock that is not
  // there stands still.
  Verdict verdict() const;

 private:
  std::filesystem::path folder_;
  double silence_s_;
  bool has_looked_ = false, grew_ = false;
  std::string seen_;  // the holder and its counter
  Clock::time_point since_ = Clock::now();
};

}  // namespace octet::app
