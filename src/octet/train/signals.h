// SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and the first SIGINT ask the run to write a checkpoint and end. The second SIGINT ends the
// process at once. If SIGHUP was already ignored, as under nohup, it stays ignored. Schedulers send SIGUSR1 or SIGUSR2 before a
// time limit (sbatch --signal=USR1@300).
#pragma once

#include <signal.h>

#include <array>

namespace octet::train {

inline constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr bool asks_to_stop(int signal) {
  for (const int stop : kStopSignals) {
    if (signal == stop) return true;
  }
  return false;
}

// Handles kStopSignals. The destructor restores the previous handlers, except while an exception is in flight: the process is
// then about to end with its own message and exit code, and a launcher that has seen another rank fail must not kill it with
// SIGTERM before that.
class StopHandlers {
 public:
  explicit StopHandlers(void (*handler)(int));
  ~StopHandlers();
  StopHandlers(const StopHandlers&) = delete;
  StopHandlers& operator=(const StopHandlers&) = delete;
  void install(void (*handler)(int)) const;

 private:
  std::array<struct sigaction, kStopSignals.size()> before_{};
};

// Before and after training there is nothing to save. While this object lives, each of kStopSignals ends the process at once
// with code 75, even while it waits. StopSignals takes its place during training.
class StopOutsideTraining {
 public:
  // Only rank 0 prints a line.
  explicit StopOutsideTraining(int rank);
  // From now on the line says that training has ended. Also handles the signals again after an exception in training was
  // caught.
  void training_ended() const;

 private:
  StopHandlers handlers_;
};

// During training.
class StopSignals {
 public:
  StopSignals();

  // Returns the name of the last signal that asked the run to stop, or null.
  static const char* requested();

 private:
  StopHandlers handlers_;
};

}  // namespace octet::train
