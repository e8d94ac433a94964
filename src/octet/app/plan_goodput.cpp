// octet plan --goodput: the share of time that saves and failures leave for training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/app/plan.h"
#include "octet/base/json.h"
#include "octet/plan/goodput.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

// Measured on two H100 (docs/measurements/gpu-tests.md, "Recovery on GPUs"); on more GPUs nobody has measured them.
constexpr double kStopS = 3;     // until the other ranks have ended
constexpr double kStartS = 2.5;  // start of the processes, meeting, corpus, plan, model and the first step
// Octet advises the longest interval that costs at most this share of the time.
constexpr double kSlack = 0.0005;
// An assumption: how long it takes until a person has noticed a failure and started the run again.
constexpr double kPersonS = 1800;

struct GoodputPlan {
  GoodputOptions options;
  plan::Upkeep upkeep;
  double step_s = 0;
  std::int64_t interval = 0, advised = 0, best = 0;  // steps
  double copy_s = 0;                                 // of a snapshot to host memory, hidden or not
  double notice_s = 0, read_s = 0;                   // parts of a recovery

  plan::Goodput every(std::int64_t steps) const { return plan::goodput_of(upkeep, static_cast<double>(steps) * step_s); }
  plan::Goodput by_hand() const {
    plan::Upkeep other = upkeep;
    other.recover_s += kPersonS;
    return plan::goodput_of(other, static_cast<double>(interval) * step_s);
  }
};

// The time from the end of backward to the end of the step. Other streams begin earlier and end later.
double update_seconds(const std::vector<parallel::TimedTask>& update) {
  const auto computes = [](const parallel::TimedTask& timed) { return timed.task.stream == parallel::StreamId::compute; };
  const auto first = std::find_if(update.begin(), update.end(), computes);
  const auto last = std::find_if(update.rbegin(), update.rend(), computes);
  return first == update.end() ? 0 : last->end - first->begin;
}

GoodputPlan goodput_plan(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  GoodputPlan result{.options = options, .step_s = run.step.seconds, .interval = config.checkpoint.interval};
  const double stored_s = static_cast<double>(options.checkpoint_bytes) / options.storage_bytes_per_s;
  const int writers = run.cluster.gpus / run.layout.mesh.size(parallel::Axis::replicate);  // the first replica
  result.copy_s = static_cast<double>(options.checkpoint_bytes) / writers / run.cluster.gpu.machine.host_bytes_per_s;
  result.notice_s = config.comm.silence_s;
  result.read_s = stored_s * (1 + run.layout.mesh.size(parallel::Axis::replicate));  // sums are checked, then every replica reads
  // The copy runs during forward and backward of the next step; that step's optimizer waits for the rest of the copy.
  const double hidden = config.checkpoint.async ? std::max(0., run.step.seconds - update_seconds(run.update)) : 0;
  result.upkeep = {.mtbf_s = 3600 * options.mtbf_hours / run.cluster.gpus,
                   .save_s = std::max(0., result.copy_s - hidden) + (config.checkpoint.async ? 0 : stored_s),
                   .write_s = config.checkpoint.async ? std::min(result.copy_s, hidden) + stored_s : 0,
                   .recover_s = result.notice_s + kStopS + kStartS + result.read_s};
  // No interval is longer than the run. With training.epochs the corpus decides how long that is.
  const std::int64_t longest = config.training.steps > 0 ? config.training.steps : std::numeric_limits<std::int64_t>::max();
  result.interval = std::min(longest, result.interval);
  result.best = std::min(longest, plan::best_interval(result.upkeep, result.step_s));
  result.advised = std::min(longest, plan::best_interval(result.upkeep, result.step_s, kSlack));
  return result;
}

std::string percent(double share) { return fmt::format("{:.3f}%", 100 * share); }

}  // namespace

std::string goodput_text(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  using telemetry::format_duration;
  const GoodputPlan plan = goodput_plan(run, config, options);
  const plan::Goodput own = plan.every(plan.interval), advised = plan.every(plan.advised);
  const auto every = [&](std::int64_t steps) {
    return fmt::format("every {}, {}", telemetry::format_count(steps, "step"),
                       format_duration(static_cast<double>(steps) * plan.step_s));
  };
  std::string text =
      fmt::format("{} in {} on {}: predicted, not measured (docs/plan.md)\n", run.run, run.recipe, cluster_text(run.cluster));
  const auto line = [&](const char* name, const std::string& value, const std::string& note) {
    text += fmt::format("  {:<22} {:>10}  {}\n", name, value, note);
  };
  line("a failure", format_duration(plan.upkeep.mtbf_s),
       fmt::format("on average until one of {} fails; --mtbf {}", telemetry::format_count(std::int64_t{run.cluster.gpus}, "GPU"),
                   std::floor(options.mtbf_hours) == options.mtbf_hours ? telemetry::format_count(options.mtbf_hours)
                                                                        : fmt::format("{}", options.mtbf_hours)));
  line("a checkpoint", telemetry::format_bytes(options.checkpoint_bytes),
       fmt::format("durable after {}; the storage takes {} GB/s", format_duration(plan.upkeep.write_s),
                   telemetry::format_significant(options.storage_bytes_per_s / 1e9, 3)));
  line("training stands still", format_duration(plan.upkeep.save_s),
       fmt::format("for a save, whose copy to host memory takes {}", format_duration(plan.copy_s)));
  line("a recovery", format_duration(plan.upkeep.recover_s),
       fmt::format("to notice {}, to stop {}, to start {}, to read {}", format_duration(plan.notice_s), format_duration(kStopS),
                   format_duration(kStartS), format_duration(plan.read_s)));
  text += fmt::format("\nshares of the time, if the run saves\n  {:<22} {:>24} {:>32}\n", "", every(plan.interval),
                      every(plan.advised) + ", advised");
  const auto row = [&](const char* name, double plan::Goodput::*part) {
    text += fmt::format("  {:<22} {:>24} {:>32}\n", name, percent(own.*part), percent(advised.*part));
  };
  row("productive", &plan::Goodput::productive);
  row("standing still", &plan::Goodput::saves);
  row("recovering", &plan::Goodput::recovery);
  row("repeating steps", &plan::Goodput::repeated);
  text += fmt::format(
      "\nSaves every {} steps would leave the most time, {}. The advised interval is the longest that costs at most {} more.\n",
      telemetry::format_count(plan.best), percent(plan.every(plan.best).productive), percent(kSlack));
  text += fmt::format("Without `octet launch --supervise`, if a person restarts the run after {}: {} productive.\n",
                      format_duration(kPersonS), percent(plan.by_hand().productive));
  return text;
}

std::string goodput_json(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  const GoodputPlan plan = goodput_plan(run, config, options);
  const auto shares = [&](std::int64_t steps) {
    const plan::Goodput goodput = plan.every(steps);
    return Json{{"interval", steps},
                {"productive", goodput.productive},
                {"saves", goodput.saves},
                {"recovery", goodput.recovery},
                {"repeated", goodput.repeated}};
  };
  const Json json = {{"run", run.run},
                     {"recipe", run.recipe},
                     {"gpus", run.cluster.gpus},
                     {"nodes", run.cluster.nodes},
                     {"mtbf_hours", options.mtbf_hours},
                     {"storage_bytes_per_s", options.storage_bytes_per_s},
                     {"checkpoint_bytes", options.checkpoint_bytes},
                     {"step_s", plan.step_s},
                     {"failure_every_s", plan.upkeep.mtbf_s},
                     {"save_s", plan.upkeep.save_s},
                     {"write_s", plan.upkeep.write_s},
                     {"recover_s", plan.upkeep.recover_s},
                     {"as_configured", shares(plan.interval)},
                     {"advised", shares(plan.advised)},
                     {"best", shares(plan.best)},
                     {"restarted_by_hand", {{"after_s", kPersonS}, {"productive", plan.by_hand().productive}}}};
  return json.dump(2) + "\n";
}

}  // namespace octet::app
