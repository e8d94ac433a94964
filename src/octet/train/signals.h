// SIGTERM, SIGHUP and the first SIGINT ask the run to write a checkpoint and end. The second SIGINT ends the process at once. If
// SIGHUP was already ignored, as under nohup, it stays ignored.
#pragma once

namespace octet::train {

// Before training begins there is nothing to save. While this object lives, SIGTERM, SIGHUP and SIGINT end the process at once
// with code 75, whatever it waits for. StopSignals takes its place when training begins.
class StopBeforeTraining {
 public:
  // Only rank 0 prints a line.
  explicit StopBeforeTraining(int rank);
  ~StopBeforeTraining();
  StopBeforeTraining(const StopBeforeTraining&) = delete;
  StopBeforeTraining& operator=(const StopBeforeTraining&) = delete;

 private:
  bool hang_up_;  // false if SIGHUP is ignored
};

// Installs the signal handlers. The destructor restores the default handling, except while an exception is in flight.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns the name of the last signal that asked the run to stop, or null.
  static const char* requested();

 private:
  bool hang_up_;  // false if SIGHUP is ignored
};

}  // namespace octet::train
