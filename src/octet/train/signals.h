// SIGTERM, SIGHUP and the first SIGINT ask for a checkpoint and an end; the second SIGINT ends the process at once. A SIGHUP that was
// ignored before, as under nohup, stays ignored.
#pragma once

namespace octet::train {

// While it lives, its handlers are installed; an exception that ends it leaves them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The name of the signal that asked to stop, or null.
  static const char* requested();

 private:
  bool hang_up_;  // SIGHUP is handled
};

}  // namespace octet::train
