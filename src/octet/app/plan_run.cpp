// A run on a cluster: its memory and its step, both from the meta device.
#include <algorithm>

#include "octet/app/plan.h"
#include "octet/train/setup.h"
#include "octet/train/step_count.h"
#include "octet/train/trainer.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

// What nvidia-smi shows beyond the plan on an H200: 0.3 to 0.6 GiB (docs/performance.md, "Memory against speed", 2026-11-21).
constexpr std::size_t kContextBytes = std::size_t{512} << 20;
// Of a communicator between GPUs. An estimate: nobody has measured it here.
constexpr std::size_t kCommunicatorBytes = std::size_t{400} << 20;

// "shard x context of ranks 0, 1, ...": see parallel::make_groups.
std::string axes_of(std::string_view group) { return std::string(group.substr(0, group.find(" of ranks "))); }

std::vector<Exchange> exchanges_of(const train::StepCount& count, const plan::Spans& spans) {
  std::vector<Exchange> result;
  for (const auto* ops : {&count.compute, &count.wire}) {
    for (const OpTime& op : *ops) {
      if (op.work.group.empty()) continue;
      const plan::Span span = plan::find_span(spans, op.work.group);
      result.push_back({.group = axes_of(op.work.group),
                        .op = op.op,
                        .span = span,
                        .bytes = op.work.bytes,
                        .seconds = op.seconds,
                        .sent = plan::sent_of(span, op.work.bytes)});
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const Exchange& a, const Exchange& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace

Overhead overhead_of(const parallel::Mesh& mesh) {
  using parallel::Axis;
  std::size_t communicators = 0;
  for (const int size :
       {mesh.size(Axis::replicate), mesh.size({Axis::shard, Axis::context}), mesh.size(Axis::context), mesh.size(Axis::tensor)}) {
    communicators += size > 1;
  }
  return {.context = kContextBytes, .nccl = communicators * kCommunicatorBytes};
}

PlannedRun plan_run(const train::Config& config, const plan::Cluster& cluster) {
  const parallel::Mesh mesh = train::mesh_of(config, cluster.gpus);
  train::EngineOptions options = train::engine_options(config, train::recipe_of(config, DeviceKind::cuda));
  options.layout = train::layout_of(config, mesh);
  const parallel::Groups groups = parallel::silent_groups(mesh, options.rank);
  const plan::Spans spans = plan::spans_of(mesh, groups, options.rank, cluster.per_node());
  PlannedRun run{.run = config.run.name,
                 .recipe = options.recipe.name,
                 .parameters = static_cast<double>(options.model.parameters()),
                 .cluster = cluster,
                 .layout = {.mesh = mesh,
                            .weights = options.layout.weights,
                            .gradients = options.layout.gradients,
                            .checkpointing = options.checkpointing,
                            .micro_batch = options.micro_batch_size},
                 .seq_len = options.seq_len,
                 .micro_batches = train::accumulation_of(config, mesh.data_coordinates()),
                 .overhead = overhead_of(mesh)};
  // Ranks of a context group differ by the keys that their chunks see: the first or the last takes most.
  run.memory = train::measure_run(config, mesh);
  if (const int last = mesh.size({parallel::Axis::context, parallel::Axis::tensor}) - 1; last > 0) {
    const train::MemoryPlan other = train::measure_run(config, mesh, last);
    if (other.total() > run.memory.total()) run.memory = other;
  }
  const auto seconds = [&](const char* op, const Work& work) { return plan::op_seconds(cluster, spans, op, work); };
  const train::StepCount count = train::count_step(options, groups, seconds, run.micro_batches);
  const double tokens =
      static_cast<double>(config.training.global_batch_size * options.seq_len) / static_cast<double>(cluster.gpus);
  run.step = plan::step_of(cluster, spans, count.compute, count.wire, count.seconds, tokens,
                           options.model.train_flops_per_token(options.seq_len));
  run.exchanges = exchanges_of(count, spans);
  for (const OpTime& op : count.compute) {
    if (op.work.group.empty()) run.ops.push_back(op);
  }
  return run;
}

}  // namespace octet::app
