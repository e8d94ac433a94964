#include "octet/app/memory_fit.h"

#include <algorithm>
#include <string>

#include "octet/app/plan.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/plan/memory_table.h"
#include "octet/telemetry/format.h"
#include "octet/train/setup.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

// Bytes of memory the device of this rank can still give, or 0 where it does not say.
std::size_t available_memory(DeviceKind device, const comm::RankEnvironment& where) {
  return device == DeviceKind::cuda ? cuda_free_memory(train::gpu_of(where))
                                    : static_cast<std::size_t>(host_memory().available_bytes.value_or(0));
}

// The ranks of rank 0's machine that write to checkpoints. Only the first replica does.
std::size_t writers_here(const parallel::Mesh& mesh, const comm::RankEnvironment& where) {
  std::size_t writers = 0;
  for (int rank = 0; rank < std::min(where.local_size, mesh.ranks()); ++rank)
    writers += mesh.coordinate(parallel::Axis::replicate, rank) == 0;
  return writers;
}

struct Needed {
  std::size_t plan = 0, nccl = 0, snapshots = 0;  // of all ranks that share the memory
  std::size_t total() const { return plan + nccl + snapshots; }
};

[[noreturn]] void does_not_fit(const train::MemoryPlan& plan, const train::EngineOptions& options, DeviceKind device,
                               const Needed& needed, std::size_t available, int ranks) {
  std::string advice;
  if (options.checkpointing != nn::Checkpointing::full) {
    advice += ", activation_checkpoint.mode = \"full\"";
  } else if (options.full_blocks < options.model.layers) {
    advice += ", a larger activation_checkpoint.layers";
  }
  const ScaleTile of_weights = options.recipe.w.tile;
  const bool transposes =
      of_weights == ScaleTile::block_128x128 || (of_weights == ScaleTile::tensor && !kernels::reads_codes_k_first(device));
  if (options.recipe.is_fp8() && options.recipe.weight_transpose_cache && transposes) {
    advice += ", precision.weight_transpose_cache = false";
  }
  if (options.storage.moments == DType::f32) advice += ", optimizer.state_dtype = \"bf16\"";
  if (device == DeviceKind::cuda && options.storage.offload_slot == 0) advice += ", optimizer.offload = true";
  if (needed.snapshots > 0) advice += ", checkpoint.async = false";
  if (options.micro_batch_size > 1) advice += ", a smaller training.micro_batch_size";
  advice += ", more ranks in parallel.shard, or in parallel.context for long sequences";
  const auto part = [](std::size_t bytes, const char* what) {
    return bytes == 0 ? std::string() : concat(", ", telemetry::format_bytes(bytes), " of it for ", what, ",");
  };
  throw DoesNotFit(
      concat("this run needs ", telemetry::format_bytes(needed.total()), ranks == 1 ? "" : concat(" (", ranks, " ranks)"),
             part(needed.nccl, "NCCL"), part(needed.snapshots, "snapshots"),
             device == DeviceKind::cuda ? " and the GPU has " : " and the machine has ", telemetry::format_bytes(available),
             " left", ranks == 1 ? "" : "; each rank", ":\n", plan::memory_table(plan.bytes, plan.snapshot),
             "what helps: a shorter training.seq_len", advice, ranks == 1 ? "" : ", fewer ranks a machine"));
}

}  // namespace

void check_host(const HostMemory& memory, std::size_t states, std::size_t snapshots) {
  const std::size_t available = static_cast<std::size_t>(memory.available_bytes.value_or(0));
  demand(available == 0 || states <= available, ExitCode::config, "optimizer.offload = true needs ",
         telemetry::format_bytes(states), " of this machine's memory for the optimizer's states, and ",
         telemetry::format_bytes(available), " are left", memory.limited_by.empty() ? "" : concat(" by ", memory.limited_by),
         "; what helps: optimizer.state_dtype = \"bf16\", optimizer.master_weights = false, or fewer ranks a machine");
  demand(available == 0 || states + snapshots <= available, ExitCode::does_not_fit, "this run needs ",
         telemetry::format_bytes(states + snapshots), " of this machine's memory for ",
         states > 0 ? "the optimizer's states and " : "", "the snapshots of its saves, and ", telemetry::format_bytes(available),
         " are left", memory.limited_by.empty() ? "" : concat(" by ", memory.limited_by),
         "; what helps: checkpoint.async = false, which needs no snapshot, or fewer ranks a machine");
}

train::Config fitting(const train::Config& config, const parallel::Mesh& mesh, const comm::RankEnvironment& where) {
  const DeviceKind device = train::device_of(config);
  const int together = device == DeviceKind::cuda ? 1 : where.local_size;  // ranks that share the memory
  const std::size_t available = available_memory(device, where), writers = writers_here(mesh, where);
  Needed needed{.nccl = device == DeviceKind::cuda ? overhead_of(mesh).nccl : 0};
  train::MemoryPlan plan;
  for (const train::Config& layout : train::layouts_allowed(config, mesh)) {
    plan = {};
    std::size_t host = 0, snapshot = 0;  // the most of a rank
    for (const int rank : largest_ranks(layout, mesh)) {
      const train::MemoryPlan own = train::measure_run(layout, mesh, rank);
      host = std::max(host, own.host());
      snapshot = std::max(snapshot, own.snapshot);
      if (own.total() > plan.total()) plan = own;
    }
    needed.plan = plan.total() * static_cast<std::size_t>(together);
    if (device == DeviceKind::cpu) {
      needed.plan += host * static_cast<std::size_t>(together);
      needed.snapshots = snapshot * writers;
    }
    if (available > 0 && needed.total() > available) continue;
    if (device == DeviceKind::cuda && available > 0)
      check_host(host_memory(), host * static_cast<std::size_t>(where.local_size), snapshot * writers);
    return layout;
  }
  does_not_fit(plan, train::engine_options(config, train::recipe_of(config, device)), device, needed, available, together);
}

train::Config fitting_together(train::World& world, const train::Config& config, const comm::RankEnvironment& where) {
  train::Config found = world.is_first() ? fitting(config, world.mesh(), where) : config;
  auto& parallel = found.parallel;
  parallel.reshard_after_forward = world.from_first("parallel.reshard_after_forward", parallel.reshard_after_forward);
  parallel.gradients = world.from_first("parallel.gradients", parallel.gradients);
  // The estimate depends on more than [parallel], which tells a run that goes on whether its ranks hold what they held.
  if (parallel.pipeline > 1) parallel.pipeline_head_blocks = world.mesh().stages().head_blocks;
  return found;
}

}  // namespace octet::app
