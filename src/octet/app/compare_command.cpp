#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "octet/app/commands.h"
#include "octet/app/compare.h"
#include "octet/app/fetched.h"
#include "octet/app/progress.h"
#include "octet/app/run_metrics.h"
#include "octet/app/standard_streams.h"
#include "octet/app/threads.h"
#include "octet/base/clock.h"
#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/checkpoint/run_lock.h"
#include "octet/comm/environment.h"
#include "octet/data/tokenizer/utf8.h"
#include "octet/report/html.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/rank_page.h"
#include "octet/train/continuation.h"
#include "octet/train/setup.h"
#include "octet/train/signals.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

struct RecipeRun {
  std::string label, recipe, repeat_of;
  train::Config config;
};

// Plans a run with every recipe on the same data, seed and steps. Each begins anew, and an earlier run in its folder is set
// aside. The baseline runs a second time with its micro-batches halved, which adds the same numbers in another order and so
// shows which differences mean nothing.
std::vector<RecipeRun> plan_runs(const train::Config& config, const std::vector<std::string>& recipes, const fs::path& output) {
  std::vector<RecipeRun> plans;
  const std::int64_t steps = steps_of_comparison(config);
  const auto add = [&](const std::string& label, const std::string& recipe, const std::string& repeat_of) -> train::Config& {
    plans.push_back({.label = label, .recipe = recipe, .repeat_of = repeat_of, .config = config});
    train::Config& c = plans.back().config;
    c.precision.recipe = recipe;
    if (recipe != "fp8_delayed") c.precision.attention = "bf16";  // no other recipe has attention in FP8
    if (recipe == "bf16" || recipe == "fp32") c.anomaly.remedy = "rollback";  // no linear is in FP8 that could be demoted
    c.run.output_dir = (output / label).string();
    c.run.set_aside = true;
    c.training.steps = steps;
    c.training.epochs = 0;
    c.metrics.log_freq = 1;  // the mean over the last tenth is over every step
    return c;
  };
  for (const std::string& recipe : recipes) add(recipe, recipe, "");
  const bool has_baseline = std::find(recipes.begin(), recipes.end(), "bf16") != recipes.end();
  if (has_baseline && config.training.micro_batch_size % 2 == 0) {
    train::Config& repeat = add("bf16-repeat", "bf16", "bf16");
    repeat.training.micro_batch_size /= 2;
  }
  return plans;
}

// Returns the seconds of a step, from a few steps of the configuration whose results are discarded.
double time_a_step(const train::Config& config, DeviceKind device) {
  const train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  train::Engine engine(options, device);
  engine.initialise(config.run.seed);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(options.micro_batch_size * options.seq_len), 1);
  std::vector<double> times;
  for (std::uint32_t step = 1; step <= 4; ++step) {
    const auto start = Clock::now();
    engine.begin_step();
    for (std::int64_t micro = 0; micro < train::accumulation_of(config); ++micro) {
      engine.forward_backward({.first_sample = 0, .tokens = ids, .targets = ids, .document_starts = {}}, nullptr);
    }
    engine.apply(1e-3, step);
    engine.stream().synchronize();
    times.push_back(seconds_since(start));
  }
  return *std::min_element(times.begin() + 1, times.end());
}

// Lowers training.steps so that all runs take about `budget_s`.
void fit_budget(std::vector<RecipeRun>& plans, double budget_s, DeviceKind device) {
  double per_step = 0;
  for (const RecipeRun& plan : plans) per_step += time_a_step(plan.config, device);
  // The rule uses the digits that are printed.
  const double digit = std::pow(10, std::floor(std::log10(per_step)) - 2);
  per_step = std::round(per_step / digit) * digit;
  constexpr double kOverhead = 1.25;  // evaluation, health samples, checkpoints, and a machine that is busy at times
  const auto affordable = static_cast<std::int64_t>(budget_s / (per_step * kOverhead));
  const std::int64_t wanted = plans.front().config.training.steps;
  const std::int64_t steps = std::clamp<std::int64_t>(affordable, std::min<std::int64_t>(wanted, 20), wanted);
  fmt::print("steps: {} of {} (budget {} s / (one step of all {} runs {:.3g} s x {}) = {}; at least 20, at most {})\n", steps,
             wanted, budget_s, plans.size(), per_step, kOverhead, affordable, wanted);
  for (RecipeRun& plan : plans) plan.config.training.steps = steps;
}

}  // namespace

fs::path output_of(const CompareArgs& args, const train::Config& config) {
  return args.output.empty() ? fs::path(config.run.output_dir) : args.output;
}

void demand_no_run(const fs::path& output) {
  demand(!path_exists(output / "run.json"), ExitCode::config, output.string(),
         ": this is the folder of a run, which has a run.json; give the comparison another folder with --output");
}

std::int64_t steps_of_comparison(const train::Config& config) {
  if (config.training.epochs == 0) return config.training.steps;
  return train::steps_of(config, data::Dataset(train::dataset_options(config, train::decoder_config(config).vocab)), {});
}

void RunCount::begin(const std::string& label) {
  const auto ended = static_cast<double>(begun_++), left = static_cast<double>(runs_) - ended;
  const std::string to_go =
      ended > 0 ? concat(", about ", telemetry::format_duration(seconds_since(start_) / ended * left), " to go") : "";
  fmt::print("run {} of {}: {}{}\n", begun_, runs_, label, to_go);
  std::fflush(stdout);
}

void show_comparison(const CompareArgs& args, const train::Config& config, const std::vector<report::Run>& runs) {
  const report::Comparison comparison = report::compare(runs, "bf16");
  const fs::path output = output_of(args, config);
  report::write_report(output, config.run.name, runs, comparison);
  if (args.json) {
    fmt::print("{}\n", report::render_json(comparison));
  } else {
    fmt::print("\n{}\nreport: {}\n", report::render_text(comparison), (output / "report.html").string());
  }
}

int run_compare(const CompareArgs& args) {
  const comm::RankEnvironment where = comm::rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  demand(where.size == 1, ExitCode::config, "`octet compare` runs in one process, but ", where.source, " says that there are ",
         where.size, " ranks; use `octet train` for each recipe, then `octet report`");
  demand(!args.recipes.empty(), ExitCode::config, "--recipes: name at least one recipe");
  const train::StopOutsideTraining stops(0);
  std::vector<std::string> recipes = args.recipes;
  std::sort(recipes.begin(), recipes.end());
  const auto twice = std::adjacent_find(recipes.begin(), recipes.end());
  demand(twice == recipes.end(), ExitCode::config, "--recipes: ", twice == recipes.end() ? "" : *twice,
         " is given twice; each recipe is trained once, with --gpus on each number of ranks");
  const std::string folder = args.output.string();
  demand(data::valid_utf8(folder) == folder.size(), ExitCode::config, "--output ", printable(folder), ": not UTF-8 text");
  outlive_stdout();
  train::Config config = load_run(args.run);
  demand(config.checkpoint.remote.empty(), ExitCode::config, "checkpoint.remote: `octet compare` makes several runs, and one place holds the "
         "checkpoints of one run; give --checkpoint.remote=");
  demand(config.checkpoint.resume == "auto" || config.checkpoint.resume == "none", ExitCode::config, "checkpoint.resume = \"",
         printable(config.checkpoint.resume), "\": `octet compare` trains every recipe from the beginning; use `octet train`");
  if (!args.gpus.empty()) return compare_ranks(args, config, stops);
  std::optional<StdoutToStderr> progress_on_stderr;
  if (args.json) progress_on_stderr.emplace();
  config.checkpoint.resume = "none";
  train::check_config(config);
  use_threads(config);
  std::vector<RecipeRun> plans = plan_runs(config, args.recipes, output_of(args, config));
  for (const RecipeRun& plan : plans) {  // refusals before the first step of the first run
    train::check_config(plan.config);
    train::engine_options(plan.config, train::recipe_of(plan.config, train::device_of(plan.config)));
  }
  if (args.time_budget_s > 0) fit_budget(plans, args.time_budget_s, train::device_of(config));

  const checkpoint::RunLock lock(output_of(args, config));
  demand_no_run(output_of(args, config));
  const std::unique_ptr<RunMetrics> metrics = own_metrics(config);
  std::vector<report::Run> runs;
  ExitCode result = ExitCode::done;  // of the whole: a run that found no finite step is a row like the others
  std::size_t width = 12;
  for (const RecipeRun& plan : plans) width = std::max(width, plan.label.size());
  RunCount count(plans.size());
  for (const RecipeRun& plan : plans) {
    count.begin(plan.label);
    Progress progress(plan.label, plan.config.training.steps, width);
    telemetry::own_page().reset();
    if (metrics) metrics->begin_run();
    train::Trainer trainer({.config = plan.config,
                            .resume = "none",
                            .label = plan.label,
                            .repeat_of = plan.repeat_of,
                            .console = [&](std::string_view line) { progress.line(line); },
                            .progress = [&](const train::StepProgress& at) { progress.step(at); }});
    ExitCode code = ExitCode::done;
    try {
      code = trainer.run();
    } catch (const Error& error) {
      if (error.code() != ExitCode::not_finite) throw;
      result = error.code();
      log_warning(concat(plan.label, ": ", error.what()));
    }
    stops.training_ended();
    progress.end();
    if (code != ExitCode::done) return static_cast<int>(code);
    runs.push_back(report::read_run(plan.config.run.output_dir));
  }
  progress_on_stderr.reset();
  show_comparison(args, config, runs);
  return static_cast<int>(result);
}

}  // namespace octet::app
