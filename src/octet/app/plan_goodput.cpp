// octet plan --goodput: the share of time that saves and failures leave for training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "octet/app/plan.h"
#include "octet/base/json.h"
#include "octet/checkpoint/snapshot_memory.h"
#include "octet/plan/goodput.h"
#include "octet/telemetry/format.h"
#include "octet/train/snapshot_pace.h"

namespace octet::app {
namespace {

// Measured on four H100 of one host with 8 billion parameters (docs/measurements/gpu-tests.md, "Four GPUs, gates and snapshots in
// memory"). On more GPUs nobody has measured them.
constexpr double kStopS = 3;     // until the other ranks have ended
constexpr double kGateS = 2.9;   // the quick gate before ranks start again, without the 0.9 s in which it measures links
constexpr double kStartS = 5;    // start of the processes, meeting, corpus, plan, model and the first step
constexpr double kLoad = 3.2e9;  // bytes per second that a rank loads from the snapshots of its host
constexpr double kCopy = 26e9;   // bytes per second that a rank copies into a snapshot beside a step
// Measured on four H200 with 1 billion parameters (docs/measurements/checkpoints.md, "Four GPUs").
constexpr double kCount = 5e9;        // bytes per second of a rank, from the begin of a snapshot until it counts
constexpr double kSnapshotS = 0.014;  // in which training pauses for a snapshot whose copy a step hides
// An assumption: bytes per second between a rank and the host that keeps its snapshots.
constexpr double kReplica = 1e9;
// Octet advises the longest interval that costs at most this share of the time.
constexpr double kSlack = 0.0005;
// An assumption: how long it takes until a person has noticed a failure and started the run again.
constexpr double kPersonS = 1800;

struct Snapshots {
  double bytes = 0;       // of a rank's snapshot
  double host_bytes = 0;  // of all snapshots in the memory of a host
  bool sent = false;      // to another host, by every rank or, if parallel.replicate > 1, by the first one
  plan::Upkeep upkeep;    // pauses for checkpoints are included
  double still_s = 0;     // training pauses for one snapshot
  double read_s = 0;
  std::int64_t every = 0;  // steps
  plan::Goodput shares;
};

struct GoodputPlan {
  GoodputOptions options;
  plan::Upkeep upkeep;  // of checkpoints in storage alone
  double step_s = 0;
  std::int64_t interval = 0, advised = 0, best = 0;  // steps
  double copy_s = 0;                                 // of a checkpoint to host memory, hidden or not
  double notice_s = 0, read_s = 0;                   // parts of a recovery
  std::optional<Snapshots> snapshots;                // nothing if the run takes none

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

// Snapshots with the replicas that outlive the loss of a host; a spare takes that host's place. `hidden` is the part of a step
// beside which a copy costs nothing.
std::optional<Snapshots> snapshots_of(const PlannedRun& run, const train::Config& config, const GoodputPlan& plan,
                                      double hidden) {
  const train::SnapshotPace pace = train::SnapshotPace::of(config.checkpoint, run.cluster.gpus);
  if (pace.takes_none()) return std::nullopt;
  Snapshots result{.bytes = static_cast<double>(run.memory.held)};
  const bool replicated = run.layout.mesh.size(parallel::Axis::replicate) > 1;  // another host has the same state
  result.sent = run.cluster.nodes > 1 && config.checkpoint.replicas > 0;
  const double ranks_of_host = std::ceil(static_cast<double>(run.cluster.gpus) / run.cluster.nodes);
  const double kept_for_others = !result.sent ? 0 : replicated ? 1 : ranks_of_host;  // ranks
  result.host_bytes = result.bytes * (ranks_of_host + kept_for_others) * checkpoint::kSlotsPerRank;
  result.still_s = std::max(kSnapshotS, result.bytes / kCopy - hidden);
  const double complete_s = result.bytes / kCount + (result.sent ? result.bytes / kReplica : 0);
  // The supervisors of other hosts send what a lost host's ranks need.
  result.read_s = result.bytes / kLoad + (result.sent ? result.bytes / kReplica : 0);
  result.every = pace.between(result.still_s, plan.step_s, static_cast<std::int64_t>(std::ceil(complete_s / plan.step_s)));
  const double saves = static_cast<double>(result.every) / static_cast<double>(plan.interval);
  result.upkeep = {.mtbf_s = plan.upkeep.mtbf_s,
                   .save_s = result.still_s + saves * plan.upkeep.save_s,
                   .write_s = complete_s,
                   .recover_s = plan.notice_s + kStopS + kGateS + kStartS + result.read_s};
  result.shares = plan::goodput_of(result.upkeep, static_cast<double>(result.every) * plan.step_s);
  return result;
}

GoodputPlan goodput_plan(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  GoodputPlan result{.options = options, .step_s = run.step.seconds, .interval = config.checkpoint.interval};
  const double stored_s = static_cast<double>(options.checkpoint_bytes) / options.storage_bytes_per_s;
  const int writers = run.cluster.gpus / run.layout.mesh.size(parallel::Axis::replicate);  // the first replica
  result.copy_s = static_cast<double>(options.checkpoint_bytes) / writers / run.cluster.gpu.machine.host_bytes_per_s;
  result.notice_s = config.comm.silence_s;
  result.read_s = stored_s * (1 + run.layout.mesh.size(parallel::Axis::replicate));  // sums are checked, then every replica reads
  // The copy runs during forward and backward of the next step; that step's optimizer waits for the rest of the copy.
  const double beside = std::max(0., run.step.seconds - update_seconds(run.update));
  const double hidden = config.checkpoint.async ? beside : 0;
  result.upkeep = {.mtbf_s = 3600 * options.mtbf_hours / run.cluster.gpus,
                   .save_s = std::max(0., result.copy_s - hidden) + (config.checkpoint.async ? 0 : stored_s),
                   .write_s = config.checkpoint.async ? std::min(result.copy_s, hidden) + stored_s : 0,
                   .recover_s = result.notice_s + kStopS + kGateS + kStartS + result.read_s};
  // No interval is longer than the run. With training.epochs the corpus decides how long that is.
  const std::int64_t longest = config.training.steps > 0 ? config.training.steps : std::numeric_limits<std::int64_t>::max();
  result.interval = std::min(longest, result.interval);
  result.best = std::min(longest, plan::best_interval(result.upkeep, result.step_s));
  result.advised = std::min(longest, plan::best_interval(result.upkeep, result.step_s, kSlack));
  result.snapshots = snapshots_of(run, config, result, beside);
  return result;
}

std::string percent(double share) { return fmt::format("{:.3f}%", 100 * share); }

}  // namespace

std::string goodput_text(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  using telemetry::format_duration;
  const GoodputPlan plan = goodput_plan(run, config, options);
  const plan::Goodput own = plan.every(plan.interval), advised = plan.every(plan.advised);
  const std::optional<Snapshots>& snapshots = plan.snapshots;
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
  const auto recovery = [&](const char* name, const plan::Upkeep& upkeep, double read_s, const char* from) {
    line(name, format_duration(upkeep.recover_s),
         fmt::format("to notice {}, to stop {}, for the gate {}, to start {}, to read {} {}", format_duration(plan.notice_s),
                     format_duration(kStopS), format_duration(kGateS), format_duration(kStartS), from, format_duration(read_s)));
  };
  if (snapshots) {
    line("a snapshot", telemetry::format_bytes(static_cast<std::uint64_t>(snapshots->bytes)),
         fmt::format("of a GPU, complete after {}{}; training pauses for {:.3f} s; a host keeps {}",
                     format_duration(snapshots->upkeep.write_s), snapshots->sent ? " on another host, too" : "",
                     snapshots->still_s, telemetry::format_bytes(static_cast<std::uint64_t>(snapshots->host_bytes))));
    recovery("a recovery from memory", snapshots->upkeep, snapshots->read_s, "snapshots");
  }
  recovery(snapshots ? "from storage" : "a recovery", plan.upkeep, plan.read_s, "the checkpoint");
  text += "\nshares of the time, if a restart continues from\n";
  const auto columns = [&](const char* name, const std::string& memory, const std::string& as_configured,
                           const std::string& other) {
    text += fmt::format("  {:<22}", name);
    if (snapshots) text += fmt::format(" {:>24}", memory);
    text += fmt::format(" {:>24} {:>32}\n", as_configured, other);
  };
  columns("", "snapshots", "checkpoints", "checkpoints");
  columns("", snapshots ? every(snapshots->every) : "", every(plan.interval), every(plan.advised) + ", advised");
  const auto row = [&](const char* name, double plan::Goodput::*part) {
    columns(name, snapshots ? percent(snapshots->shares.*part) : "", percent(own.*part), percent(advised.*part));
  };
  row("productive", &plan::Goodput::productive);
  row("standing still", &plan::Goodput::saves);
  row("recovering", &plan::Goodput::recovery);
  row("repeating steps", &plan::Goodput::repeated);
  text += "\n";
  if (snapshots) {
    text += "`octet launch --supervise` continues from snapshots. ";
    text += !snapshots->sent ? "The loss of a host takes its snapshots with it; only checkpoints then remain.\n"
                             : "If the host with its replicas is also lost, only checkpoints remain. Without a spare,\na run "
                               "that has lost a host waits "
                               "for it, or continues with fewer ranks if `--min-hosts` allows it.\n";
  }
  text += fmt::format(
      "From checkpoints alone, saves every {} would leave the most time, {}. The advised interval is the longest that costs at "
      "most "
      "{} more.\n",
      telemetry::format_count(plan.best, "step"), percent(plan.every(plan.best).productive), percent(kSlack));
  text += fmt::format("Without `octet launch --supervise`, if a person restarts the run after {}: {} productive.\n",
                      format_duration(kPersonS), percent(plan.by_hand().productive));
  return text;
}

std::string goodput_json(const PlannedRun& run, const train::Config& config, const GoodputOptions& options) {
  const GoodputPlan plan = goodput_plan(run, config, options);
  const auto shares_of = [](std::int64_t steps, const plan::Goodput& goodput) {
    return Json{{"interval", steps},
                {"productive", goodput.productive},
                {"saves", goodput.saves},
                {"recovery", goodput.recovery},
                {"repeated", goodput.repeated}};
  };
  const auto shares = [&](std::int64_t steps) { return shares_of(steps, plan.every(steps)); };
  Json snapshots;
  if (plan.snapshots) {
    snapshots = shares_of(plan.snapshots->every, plan.snapshots->shares);
    snapshots.update({{"bytes", plan.snapshots->bytes},
                      {"host_bytes", plan.snapshots->host_bytes},
                      {"still_s", plan.snapshots->still_s},
                      {"complete_s", plan.snapshots->upkeep.write_s},
                      {"recover_s", plan.snapshots->upkeep.recover_s}});
  }
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
                     {"snapshots", snapshots},
                     {"as_configured", shares(plan.interval)},
                     {"advised", shares(plan.advised)},
                     {"best", shares(plan.best)},
                     {"restarted_by_hand", {{"after_s", kPersonS}, {"productive", plan.by_hand().productive}}}};
  return json.dump(2) + "\n";
}

}  // namespace octet::app
