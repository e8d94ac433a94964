#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/job_memory.h"
#include "octet/app/memory_fit.h"
#include "octet/app/plan.h"
#include "octet/app/progress.h"
#include "octet/app/run_metrics.h"
#include "octet/app/standard_streams.h"
#include "octet/app/threads.h"
#include "octet/base/log.h"
#include "octet/base/print_stack.h"
#include "octet/base/retry.h"
#include "octet/base/visible.h"
#include "octet/checkpoint/snapshot_memory.h"
#include "octet/comm/environment.h"
#include "octet/data/corpus.h"
#include "octet/plan/memory_table.h"
#include "octet/telemetry/format.h"
#include "octet/train/base_model.h"
#include "octet/train/continuation.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/signals.h"
#include "octet/train/snapshot_pace.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

// A rank that is not the first: the same run, silent but for what it alone has to say.
int train_beside(const TrainArgs& args, train::Config config, const comm::RankEnvironment& where) {
  if (args.dry_run) return 0;
  train::World world(where, config);
  config = fitting_together(world, config, where);
  train::Trainer trainer({.config = config, .resume = config.checkpoint.resume, .until = args.until, .world = &world});
  return static_cast<int>(trainer.run());
}

std::string mesh_text(const parallel::Mesh& mesh, const train::Config& config) {
  std::string text;
  for (const parallel::Axis axis :
       {parallel::Axis::pipeline, parallel::Axis::replicate, parallel::Axis::shard, parallel::Axis::context, parallel::Axis::tensor}) {
    if (mesh.size(axis) > 1) text += concat(text.empty() ? "" : " x ", name_of(axis), " ", mesh.size(axis));
  }
  if (mesh.stages().chunks > 1) text += concat(", ", mesh.stages().chunks, " chunks on each stage");
  if (mesh.expert() > 1) text += concat(", expert ", mesh.expert());
  if (mesh.size({parallel::Axis::shard, parallel::Axis::context}) > 1) {
    text += concat(", gradients ", config.parallel.gradients, ", weights ",
                   config.parallel.reshard_after_forward == "true" ? "gathered for each use" : "kept");
  }
  return text;
}

// "886 K parameters", or with adapters "886 K frozen parameters, 109 K trained in adapters,".
std::string text_of_parameters(models::Decoder& model, double parameters) {
  double trained = 0;
  for (const auto* linear : model.linears()) {
    if (const nn::Adapter* adapter = linear->adapter())
      trained += static_cast<double>(adapter->a().cut.global().elements() + adapter->b().cut.global().elements());
  }
  const std::string count = telemetry::format_compact(parameters);
  return trained == 0 ? count + " parameters"
                      : concat(count, " frozen parameters, ", telemetry::format_compact(trained), " trained in adapters,");
}

// What the plan says beneath its table.
void print_memory(const train::Config& config, const train::MemoryPlan& plan) {
  fmt::print("memory plan\n{}", plan::memory_table(plan.bytes, plan.snapshot));
  if (!config.checkpoint.local_dir.empty()) {
    fmt::print("two snapshots of this rank take {} in checkpoint.local_dir = {}\n", telemetry::format_bytes(2 * plan.held),
               config.checkpoint.local_dir);
  }
}

// The pause for one snapshot on GPUs (docs/measurements/checkpoints.md, "Four GPUs").
constexpr double kPauseS = 0.014;

// The memory for snapshots is no part of the plan, because ranks without a supervisor do not take it.
void print_snapshots(const train::Config& config, const train::MemoryPlan& plan, const comm::RankEnvironment& where) {
  const train::SnapshotPace pace = train::SnapshotPace::of(config.checkpoint, where.size);
  if (pace.takes_none()) return;
  fmt::print("under `octet launch --supervise` this host keeps {} snapshots of {} in memory{}\n",
             checkpoint::kSlotsPerRank * where.local_size, telemetry::format_bytes(plan.held),
             config.checkpoint.replicas > 0 ? ", and on several hosts up to as many again for another host" : "");
  if (!pace.is_auto()) return;
  const std::string failures = pace.mtbf_s() > 0 ? fmt::format("with a failure every {} (checkpoint.mtbf_hours / {})",
                                                               telemetry::format_duration(pace.mtbf_s()),
                                                               telemetry::format_count(std::int64_t{where.size}, "rank"))
                                                 : "without checkpoint.mtbf_hours";
  const std::string farthest = pace.mtbf_s() > 0 && config.checkpoint.interval > 0
                                   ? fmt::format(", or every {} steps (checkpoint.interval) if that is more often",
                                                 telemetry::format_count(config.checkpoint.interval))
                                   : "";
  fmt::print("{}, a snapshot that costs training {:.0f} ms is taken every {}{}; the run measures what its snapshots cost\n",
             failures, 1e3 * kPauseS, telemetry::format_duration(pace.auto_s(kPauseS)), farthest);
}

}  // namespace

int run_train(const TrainArgs& args) {
  print_stack_on_signal();
  const std::optional<std::string> kept = text_of_job(kConfigOfJob);
  train::Config config =
      train::parse_config(kept ? *kept : train::read_config_text(args.run.path), args.run.path.string(), args.run.overrides);
  if (!args.resume.empty()) config.checkpoint.resume = args.resume;
  if (args.print_config) {
    fmt::print("{}", train::print_config(config));
    return 0;
  }
  if (!args.dry_run) {
    outlive_stdout();
    set_log_time(LogTime::utc);
  }
  const comm::RankEnvironment where = comm::rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  std::optional<train::StopOutsideTraining> stops;
  if (!args.dry_run) stops.emplace(where.rank);
  if (where.rank > 0) set_log(Log::own_warnings);
  train::check_config(config, where.size);
  const train::Fetch what = args.dry_run ? train::Fetch::architecture : train::Fetch::everything;
  or_use_copies_of_job(config, [&] { train::fetch_resumed(config, what, show_copy); });
  config.checkpoint.resume = train::checkpoint_to_resume(config.checkpoint);
  or_use_copies_of_job(config, [&] { train::fetch_inputs(config, what, show_copy); });
  if (where.local_rank == 0) remember_copies_for_job(config);
  const parallel::Mesh mesh = train::mesh_of(config, where.size);
  use_threads(config, where.local_size);
  const DeviceKind device = train::device_of(config);
  if (where.rank > 0) return train_beside(args, config, where);
  const train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  train::warn_of_idle_preset(config);
  if (!args.dry_run) {
    for (const train::SourceConfig& source : config.data.source)
      retry(config.checkpoint.retry_s, [&] { data::demand_corpus(source.path); });
  }
  {
    models::Decoder model(options.model, options.recipe, {}, {}, {}, 0, options.adapters);
    fmt::print("run {}: {} on {}, recipe {}\n", config.run.name,
               text_of_parameters(model, static_cast<double>(options.model.parameters())), name_of(device),
               train::recipe_text(options.recipe, device));
    fmt::print("precision of the linear layers\n{}", train::precision_table(model));
  }
  if (args.dry_run) {
    const bool is_copy = config.copies.contains(config.model.init_from);  // of config.json alone
    if (!is_copy) train::check_init_from(config);
    const train::MemoryPlan plan = most_memory(fitting(config, mesh, where), mesh).plan;
    print_memory(config, plan);
    print_snapshots(config, plan, where);
    std::fflush(stdout);
    if (const std::string why = train::why_not_continued(config); !why.empty())
      log_warning("without --dry-run this run would be refused: " + why);
    return 0;
  }
  const std::unique_ptr<RunMetrics> metrics = own_metrics(config);
  train::World world(where, config);
  config = fitting_together(world, config, where);
  if (where.size > 1) {
    log_info(concat(where.size, " ranks (variables of ", where.source, "): ", mesh_text(mesh, config)));
  } else if (where.source != comm::RankEnvironment::kOneProcess) {
    log_info(concat("1 rank (variables of ", where.source, ")"));
  } else if (!where.ignored.empty()) {
    log_info("1 rank: " + where.ignored);
  }
  Progress progress;
  train::TrainerOptions trainer_options{.config = config,
                                        .console = [&](std::string_view line) { progress.line(line); },
                                        .progress = [&](const train::StepProgress& at) { progress.step(at); },
                                        .world = &world};
  trainer_options.resume = config.checkpoint.resume;
  trainer_options.until = args.until;
  train::Trainer trainer(trainer_options);
  print_memory(config, trainer.plan());
  fmt::print("{}{} of {} of {}: {} of {} to a step\n", telemetry::format_count(trainer.steps(), "step"),
             config.training.epochs > 0 ? concat(" (training.epochs = ", config.training.epochs, ")") : "",
             telemetry::format_count(config.training.global_batch_size, "sequence"),
             telemetry::format_count(config.training.seq_len, "token"),
             telemetry::format_count(train::accumulation_of(config, mesh.data_coordinates()), "micro-batch"),
             config.training.micro_batch_size);
  if (const std::int64_t warmup = config.lr_scheduler.warmup_steps; warmup >= trainer.steps() && trainer.steps() > 0) {
    fmt::print("the learning rate rises until the run ends: lr_scheduler.warmup_steps = {}, and there are {}\n", warmup,
               telemetry::format_count(trainer.steps(), "step"));
  }
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(config.run.output_dir, unknown);
  fmt::print("a checkpoint takes {}{} in {}\n", telemetry::format_bytes(trainer.checkpoint_bytes()),
             unknown ? "" : concat("; ", telemetry::format_bytes(space.available), " are free"), config.run.output_dir);
  std::fflush(stdout);
  const ExitCode code = trainer.run();
  stops->training_ended();
  progress.end();
  if (trainer.has_exported()) {
    const std::filesystem::path folder = config.run.output_dir;
    const auto logged = std::filesystem::file_size(folder / "metrics.jsonl", unknown);
    log_info(concat("done: the ", config.lora ? "adapter is in " : "model is in ", config.run.output_dir,
                    config.lora ? "/adapter" : "/model",
                    unknown || logged == 0 ? "" : concat(", `octet report ", shell_word(folder.string()), "` draws the curves")));
  }
  return static_cast<int>(code);
}

}  // namespace octet::app
