#include "octet/telemetry/meter.h"

#include <chrono>
#include <utility>

#include "octet/base/require.h"
#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StepMeter::StepMeter(Options options) : options_(std::move(options)) {
  require(options_.processes > 0, "meter: processes must be positive, got ", options_.processes);
  started_ = options_.clock();
  interval_started_ = running();
}

double StepMeter::running() const { return (pauses_ > 0 ? paused_at_ : options_.clock()) - paused_total_; }

void StepMeter::pause() {
  if (pauses_++ == 0) paused_at_ = options_.clock();
}

void StepMeter::resume() {
  require(pauses_ > 0, "meter: resumed without a pause");
  if (--pauses_ == 0) paused_total_ += options_.clock() - paused_at_;
}

void StepMeter::add_step(std::int64_t tokens, std::int64_t samples) {
  ++interval_steps_;
  ++done_;
  tokens_ += tokens;
  samples_ += samples;
}

StepMeter::Interval StepMeter::interval() const { return until(running()); }

StepMeter::Interval StepMeter::until(double now) const {
  const double duration = now - interval_started_;
  Interval interval;
  if (interval_steps_ > 0) {
    const auto steps = static_cast<double>(interval_steps_);
    const double rate = duration > 0 ? 1 / duration : 0;
    interval.steps = interval_steps_;
    interval.step_time_s = duration / steps;
    interval.data_time_s = data_s_ / steps;
    interval.tokens_per_s = static_cast<double>(tokens_) * rate;
    interval.tokens_per_s_per_process = interval.tokens_per_s / static_cast<double>(options_.processes);
    interval.samples_per_s = static_cast<double>(samples_) * rate;
  }
  return interval;
}

StepMeter::Interval StepMeter::take() {
  const double now = running();
  const Interval interval = until(now);
  interval_started_ = now;
  interval_steps_ = tokens_ = samples_ = 0;
  data_s_ = 0;
  return interval;
}

double StepMeter::eta_s(std::int64_t step) const {
  if (done_ == 0) return kUnknown;
  const std::int64_t left = options_.total_steps - step;
  return left <= 0 ? 0 : elapsed_s() / static_cast<double>(done_) * static_cast<double>(left);
}

double StepMeter::elapsed_s() const { return options_.clock() - started_; }

}  // namespace octet::telemetry
