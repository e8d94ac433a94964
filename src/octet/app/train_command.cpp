#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "octet/app/commands.h"
#include "octet/app/plan.h"
#include "octet/app/threads.h"
#include "octet/base/log.h"
#include "octet/comm/environment.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/plan/memory_table.h"
#include "octet/telemetry/format.h"
#include "octet/train/setup.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

void print_line(std::string_view line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// Bytes of memory the device of this rank can still give, or 0 where it does not say.
std::size_t available_memory(DeviceKind device, const comm::RankEnvironment& where) {
  if (device == DeviceKind::cuda) return cuda_free_memory(train::gpu_of(where));
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key && std::getline(info, rest);) {
    if (key == "MemAvailable:") return std::stoull(rest) * 1024;
  }
  return 0;
}

[[noreturn]] void does_not_fit(const train::MemoryPlan& plan, const train::EngineOptions& options, DeviceKind device,
                               std::size_t needed, std::size_t available, int ranks) {
  std::string advice;
  if (options.checkpointing != nn::Checkpointing::full) advice += ", activation_checkpoint.mode = \"full\"";
  const ScaleTile of_weights = options.recipe.w.tile;
  if (options.recipe.is_fp8() && options.recipe.weight_transpose_cache &&
      (of_weights == ScaleTile::tensor || of_weights == ScaleTile::block_128x128)) {
    advice += ", precision.weight_transpose_cache = false";
  }
  if (options.moments_dtype == DType::f32) advice += ", optimizer.state_dtype = \"bf16\"";
  if (options.micro_batch_size > 1) advice += ", a smaller training.micro_batch_size";
  advice += ", more ranks in parallel.shard, or in parallel.context for long sequences";
  const std::size_t nccl = needed - plan.total() * static_cast<std::size_t>(ranks);
  fail(ExitCode::does_not_fit, "this run needs ", telemetry::format_bytes(needed),
       ranks == 1 ? "" : concat(" (", ranks, " ranks)"), nccl == 0 ? "" : concat(", ", telemetry::format_bytes(nccl), " of it for NCCL,"),
       device == DeviceKind::cuda ? " and the GPU has " : " and the machine has ", telemetry::format_bytes(available), " left",
       ranks == 1 ? "" : "; each rank", ":\n", plan::memory_table(plan.bytes), "what helps: a shorter training.seq_len", advice,
       ranks == 1 ? "" : ", fewer ranks a machine");
}

// Settles what [parallel] leaves to the memory: the first layout that fits.
train::Config settled(const train::Config& config, const parallel::Mesh& mesh, const train::EngineOptions& options,
                      DeviceKind device, const comm::RankEnvironment& where) {
  const int together = device == DeviceKind::cuda ? 1 : where.local_size;  // ranks that share the memory
  const std::size_t available = available_memory(device, where), nccl = device == DeviceKind::cuda ? overhead_of(mesh).nccl : 0;
  train::MemoryPlan plan;
  std::size_t needed = 0;
  for (const train::Config& layout : train::layouts_allowed(config, mesh)) {
    plan = train::measure_run(layout, mesh);
    needed = plan.total() * static_cast<std::size_t>(together) + nccl;
    if (available == 0 || needed <= available) return layout;
  }
  does_not_fit(plan, options, device, needed, available, together);
}

// What rank 0 has settled, on every rank.
void share_layout(train::World& world, train::Config& config) {
  config.parallel.reshard_after_forward =
      world.from_first("parallel.reshard_after_forward", config.parallel.reshard_after_forward);
  config.parallel.gradients = world.from_first("parallel.gradients", config.parallel.gradients);
}

// A rank that is not the first: the same run, silent but for what it alone has to say.
int train_beside(const TrainArgs& args, train::Config config, const comm::RankEnvironment& where) {
  if (args.dry_run) return 0;
  set_log(Log::own_warnings);
  train::World world(where, config);
  share_layout(world, config);
  train::Trainer trainer({.config = config, .resume = config.checkpoint.resume, .world = &world});
  return static_cast<int>(trainer.run());
}

std::string mesh_text(const parallel::Mesh& mesh, const train::Config& config) {
  std::string text;
  for (const parallel::Axis axis :
       {parallel::Axis::replicate, parallel::Axis::shard, parallel::Axis::context, parallel::Axis::tensor}) {
    if (mesh.size(axis) > 1) text += concat(text.empty() ? "" : " x ", name_of(axis), " ", mesh.size(axis));
  }
  if (mesh.expert() > 1) text += concat(", expert ", mesh.expert());
  if (mesh.size({parallel::Axis::shard, parallel::Axis::context}) > 1) {
    text += concat(", gradients ", config.parallel.gradients, ", weights ",
                   config.parallel.reshard_after_forward == "true" ? "gathered for each use" : "kept");
  }
  return text;
}

}  // namespace

int run_train(const TrainArgs& args) {
  train::Config config = train::load_config(args.run.path, args.run.overrides);
  if (!args.resume.empty()) config.checkpoint.resume = args.resume;
  if (args.print_config) {
    fmt::print("{}", train::print_config(config));
    return 0;
  }
  const comm::RankEnvironment where = comm::rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  train::check_config(config, where.size);
  const parallel::Mesh mesh = train::mesh_of(config, where.size);
  use_threads(config, where.local_size);
  const DeviceKind device = train::device_of(config);
  if (where.rank > 0) return train_beside(args, config, where);
  const train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  {
    models::Decoder model(options.model, options.recipe);
    fmt::print("{}: {} parameters on {}, recipe {}\n", config.run.name,
               telemetry::format_compact(static_cast<double>(options.model.parameters())), name_of(device), options.recipe.name);
    fmt::print("precision of the linear layers\n{}", train::precision_table(model));
  }
  if (args.dry_run) {
    fmt::print("memory plan\n{}",
               plan::memory_table(train::measure_run(settled(config, mesh, options, device, where), mesh).bytes));
    return 0;
  }
  train::World world(where, config);
  config = settled(config, mesh, options, device, where);
  share_layout(world, config);
  if (where.size > 1) log_info(concat(where.size, " ranks, as ", where.source, " says: ", mesh_text(mesh, config)));
  train::TrainerOptions trainer_options{.config = config, .console = print_line, .world = &world};
  trainer_options.resume = config.checkpoint.resume;
  train::Trainer trainer(trainer_options);
  fmt::print("memory plan\n{}", plan::memory_table(trainer.plan().bytes));
  fmt::print("{} steps of {} sequences of {} tokens: {} micro-batches of {} to a step\n", trainer.steps(),
             config.training.global_batch_size, config.training.seq_len, train::accumulation_of(config, mesh.data_coordinates()),
             config.training.micro_batch_size);
  std::fflush(stdout);
  const ExitCode code = trainer.run();
  if (code == ExitCode::done) {
    log_info(concat("done: the model is in ", config.run.output_dir, "/model, `octet report ", config.run.output_dir,
                    "` draws the curves"));
  }
  return static_cast<int>(code);
}

}  // namespace octet::app
