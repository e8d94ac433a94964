// Measures the speed of training, and predicts how long it will take.
#pragma once

#include <cstdint>
#include <functional>

namespace octet::telemetry {

// Seconds on a clock that never goes back; its zero is arbitrary.
double steady_seconds();

// Means over the steps since the last `take`. Time between pause and resume (evaluation, checkpoints, generation) counts
// for the ETA, not for the throughput.
class StepMeter {
 public:
  struct Options {
    std::int64_t total_steps = 0;
    std::int64_t processes = 1;
    std::function<double()> clock = steady_seconds;
  };
  explicit StepMeter(Options options);

  void pause();   // nested pauses count once, from the first to the last resume
  void resume();
  // Time spent waiting for data; part of the step's time.
  void add_data_time(double seconds) { data_s_ += seconds; }
  // One step done: tokens and sequences of all ranks.
  void add_step(std::int64_t tokens, std::int64_t samples);

  struct Interval {
    std::int64_t steps = 0;
    double step_time_s = 0, data_time_s = 0;
    double tokens_per_s = 0, tokens_per_s_per_process = 0, samples_per_s = 0;
  };
  // The interval up to now. All zero if no step was added.
  Interval interval() const;
  // Does the same and begins the next interval.
  Interval take();
  // Seconds from `step`, the number of finished steps, to total_steps at this process's mean pace, including pauses. NaN before
  // the first step.
  double eta_s(std::int64_t step) const;
  // Seconds since construction, including pauses.
  double elapsed_s() const;

 private:
  double running() const;
  Interval until(double now) const;

  Options options_;
  double started_ = 0;
  double interval_started_ = 0;  // on the clock of running()
  double paused_total_ = 0, paused_at_ = 0;
  int pauses_ = 0;
  double data_s_ = 0;
  std::int64_t done_ = 0, interval_steps_ = 0, tokens_ = 0, samples_ = 0;
};

// Pauses a meter for a scope.
class PausedMeter {
 public:
  explicit PausedMeter(StepMeter& meter) : meter_(meter) { meter_.pause(); }
  ~PausedMeter() { meter_.resume(); }
  PausedMeter(const PausedMeter&) = delete;
  PausedMeter& operator=(const PausedMeter&) = delete;

 private:
  StepMeter& meter_;
};

}  // namespace octet::telemetry
