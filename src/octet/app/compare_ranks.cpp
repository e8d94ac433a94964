// `octet compare --gpus`: each recipe on several numbers of ranks, a group of processes for each run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/app/compare.h"
#include "octet/app/fetched.h"
#include "octet/app/local_ranks.h"
#include "octet/app/progress.h"
#include "octet/app/standard_streams.h"
#include "octet/base/bottom_line.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/run_lock.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/train/setup.h"
#include "octet/train/signals.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

struct RanksRun {
  std::string label;  // "bf16 x2"
  int ranks;
  std::vector<std::string> overrides;  // options that follow the file, like the user's own
  train::Config config;
};

std::vector<int> sorted_numbers(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  demand(twice == numbers.end(), ExitCode::config, "--gpus: ", twice == numbers.end() ? 0 : *twice, " is given twice");
  for (const int n : {numbers.front(), numbers.back()}) {
    demand(n >= 1 && n <= kMostRanks, ExitCode::config, "--gpus: must be 1 to ", kMostRanks, ", not ", n);
  }
  return numbers;
}

RanksRun plan_run(const CompareArgs& args, const train::Config& base, const std::string& recipe, int ranks, int fewest) {
  const std::int64_t sequences = base.training.global_batch_size * ranks;
  demand(sequences % fewest == 0, ExitCode::config, base.file, ": training.global_batch_size = ", base.training.global_batch_size,
         " is the batch of ", fewest, " ranks; ", ranks, " ranks would get ", sequences, " / ", fewest,
         " sequences: give a multiple of ", fewest);
  RanksRun plan{.label = fmt::format("{} x{}", recipe, ranks), .ranks = ranks, .overrides = args.run.overrides, .config = {}};
  const fs::path folder = output_of(args, base) / fmt::format("{}-x{}", recipe, ranks);
  // With more ranks an epoch has fewer steps, but all runs take the same number.
  if (base.training.epochs > 0) plan.overrides.push_back(fmt::format("training.steps={}", steps_of_comparison(base)));
  for (const std::string& own : {"run.name=" + Json(recipe).dump(), "run.output_dir=" + Json(folder.string()).dump(),
                                 "precision.recipe=" + recipe, fmt::format("training.global_batch_size={}", sequences / fewest),
                                 std::string("metrics.log_freq=1")}) {  // the mean over the last tenth is over every step
    plan.overrides.push_back(own);
  }
  if (recipe != "fp8_delayed") plan.overrides.push_back("precision.attention=bf16");  // no other recipe has attention in FP8
  if (recipe == "bf16" || recipe == "fp32") plan.overrides.push_back("anomaly.remedy=rollback");  // no linear is in FP8
  plan.config = load_run({args.run.path, plan.overrides}, train::Fetch::architecture);
  return plan;
}

// Refuses, before the first step of the first run, what can be known to fail.
void check(const RanksRun& plan) {
  train::check_config(plan.config, plan.ranks);
  train::mesh_of(plan.config, plan.ranks);
  const DeviceKind device = train::device_of(plan.config);
  train::engine_options(plan.config, train::recipe_of(plan.config, device));
  if (device != DeviceKind::cuda) return;
  const int there = cuda_device_count();
  demand(plan.ranks <= there, ExitCode::config, "--gpus: ", plan.ranks, ", but this machine has ", there);
}

// Returns a key that differs between this run and the one whose checkpoints are there, if any, because a table must not mix two
// configurations. Keys of [parallel] that are left to Octet keep their earlier choice.
std::optional<train::Difference> made_with_other_settings(const RanksRun& plan) {
  const nlohmann::json meta =
      checkpoint::newest_meta(fs::path(plan.config.run.output_dir) / "checkpoints", plan.config.checkpoint.retry_s);
  const nlohmann::json before = meta.value("config", nlohmann::json());
  if (before.is_null()) return std::nullopt;
  for (const train::Difference& d : train::differences(Json(before), plan.config)) {
    const bool left = (d.key == "parallel.reshard_after_forward" || d.key == "parallel.gradients") && d.now == "\"auto\"";
    if (!left && !(d.key == "parallel.pipeline_head_blocks" && d.now == "-1")) return d;
  }
  return std::nullopt;
}

std::vector<std::string> command_of(const CompareArgs& args, const RanksRun& plan) {
  std::vector<std::string> command{"train", args.run.path.string(), "--resume=auto"};
  if (const auto other = made_with_other_settings(plan)) {
    log_info(concat(plan.config.run.output_dir, ": was made with ", other->key, " = ", other->before, ", not ", other->now,
                    "; starts anew"));
    command.back() = "--resume=none";
    command.push_back("--run.set_aside=true");
  }
  for (const std::string& override : plan.overrides) command.push_back("--" + override);
  return command;
}

// Runs one group of ranks and returns the exit code. `width` is that of the longest label. Of the ranks' stdout it shows only
// the lines of steps, and all of their stderr.
int run(const CompareArgs& args, const RanksRun& plan, std::size_t width) {
  Progress progress(plan.label, plan.config.training.steps, width);
  const LocalToken token;
  ProcessGroupOptions options =
      local_ranks({.count = plan.ranks, .all = plan.ranks, .port = free_port()}, command_of(args, plan), token.variable());
  options.output = [&](int rank, StandardStream stream, std::string_view line) {
    if (stream == StandardStream::err) {
      const AboveBottomLine above;
      fmt::print(stderr, "{}{}", rank == 0 ? "" : fmt::format("[{}] ", rank), line);
    } else if (rank == 0 && line.rfind("step ", 0) == 0) {
      line.remove_suffix(line.back() == '\n' ? 1 : 0);
      progress.line(line);
      progress.step(live_step(line));
    }
  };
  const auto say = [&](std::string_view sentence) {
    const AboveBottomLine above;
    fmt::print(stderr, "octet compare: {}: {}\n", plan.label, sentence);
  };
  options.note = say;
  ProcessGroup group(std::move(options));
  const int code = group.run();
  progress.end();
  if (code != 0 || !group.asked_to_end()) return code;
  say("asked to stop after its last step");
  return static_cast<int>(ExitCode::preempted);
}

}  // namespace

int compare_ranks(const CompareArgs& args, const train::Config& config, const train::StopOutsideTraining& stops) {
  demand(args.time_budget_s == 0, ExitCode::config, "--time-budget does not work with --gpus; give --training.steps instead");
  const std::vector<int> numbers = sorted_numbers(args.gpus);
  std::vector<RanksRun> plans;
  for (const int ranks : numbers) {
    for (const std::string& recipe : args.recipes) plans.push_back(plan_run(args, config, recipe, ranks, numbers.front()));
  }
  for (const RanksRun& plan : plans) check(plan);
  std::optional<StdoutToStderr> progress_on_stderr;
  if (args.json) progress_on_stderr.emplace();
  const checkpoint::RunLock lock(output_of(args, config));
  demand_no_run(output_of(args, config));
  std::vector<report::Run> runs;
  int result = 0;  // of the whole: a run that found no finite step is a row like the others
  std::size_t width = 12;
  for (const RanksRun& plan : plans) width = std::max(width, plan.label.size());
  RunCount count(plans.size());
  for (const RanksRun& plan : plans) {
    count.begin(plan.label);
    if (const int code = run(args, plan, width)) {
      if (code != static_cast<int>(ExitCode::not_finite)) return code;
      result = code;
    }
    stops.training_ended();
    runs.push_back(report::read_run(plan.config.run.output_dir));
  }
  progress_on_stderr.reset();
  show_comparison(args, config, runs);
  return result;
}

}  // namespace octet::app
