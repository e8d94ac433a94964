// Turns signals into data: the signals that this process receives can be read from a file descriptor, next to everything else
// that poll waits for.
#pragma once

#include <signal.h>

#include <array>
#include <vector>

namespace octet::app {

// While an object lives, SIGINT, SIGTERM, SIGHUP (unless it is ignored, as under nohup), SIGUSR1, SIGUSR2 and SIGCHLD arrive
// here. A process may have only one object at a time. A second SIGINT ends the process at once with code 130; the handler does
// this, because the process may be waiting in a write that nobody reads.
class SignalPipe {
 public:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};

  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return read_; }
  // Returns the signals that have arrived since the last call. Never waits.
  std::vector<int> take() const;
  // Restores the previous handlers. Also for a child between fork and exec, so that ignored signals stay ignored (nohup).
  void restore_handlers() const;

 private:
  int read_ = -1, write_ = -1;
  std::array<struct sigaction, kSignals.size()> before_{};
  sigset_t mask_before_{};
};

}  // namespace octet::app
