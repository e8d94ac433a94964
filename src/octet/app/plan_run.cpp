// Plans a run on a cluster: its memory and its step, both counted on the meta device.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "octet/app/plan.h"
#include "octet/kernels/attention/attention_workspace.h"
#include "octet/nn/attention.h"
#include "octet/plan/offload_time.h"
#include "octet/recipes/registry.h"
#include "octet/train/setup.h"
#include "octet/train/step_count.h"
#include "octet/train/trainer.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

// The difference between nvidia-smi and the plan on an H200: 0.3 to 0.6 GiB (docs/measurements/h200-one-gpu.md, "Memory against
// speed").
constexpr std::size_t kContextBytes = std::size_t{512} << 20;
// The memory of a communicator between GPUs: by nvidia-smi, two took 1.3 GiB in addition to that and the plan, on two H200
// (2026-11-22).
constexpr std::size_t kCommunicatorBytes = std::size_t{680} << 20;

// "shard x context of ranks 0, 1, ...": see parallel::make_groups.
std::string axes_of(std::string_view group) { return std::string(group.substr(0, group.find(" of ranks "))); }

// `more` is the same rank, counted with enough micro-batches to know the cost of one more.
std::vector<Exchange> exchanges_of(const train::StepCount& count, const train::StepCount& more, const plan::Spans& spans) {
  std::vector<Exchange> result;
  const auto bytes_of = [](const std::vector<OpTime>& each, const OpTime& op) {
    double bytes = 0;
    for (const OpTime& e : each) {
      if (e.work.group == op.work.group && e.work.shape == op.work.shape && std::string_view(e.op) == op.op)
        bytes += e.work.bytes;
    }
    return bytes;
  };
  const bool stages = count.shape.stages.count > 1;
  for (const auto& [ops, each] : {std::pair(&count.compute, &more.each_compute), std::pair(&count.params, &more.each_params)}) {
    for (const OpTime& op : *ops) {
      if (op.work.group.empty()) continue;
      const plan::Span span = plan::find_span(spans, op.work.group);
      result.push_back({.group = axes_of(op.work.group),
                        .op = op.op,
                        .span = span,
                        .bytes = op.work.bytes,
                        .seconds = op.seconds,
                        .each_bytes = stages ? std::nullopt : std::optional(bytes_of(*each, op)),
                        .sent = plan::sent_of(span, op.op, op.work.bytes)});
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const Exchange& a, const Exchange& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace

Overhead overhead_of(const parallel::Mesh& mesh) {
  using parallel::Axis;
  std::size_t communicators = 0;
  const int shards = mesh.size({Axis::shard, Axis::context}), expert = mesh.expert();
  const parallel::Stages stages = mesh.stages();
  for (const int size : {mesh.size(Axis::replicate), shards, mesh.size(Axis::context), mesh.size(Axis::tensor), expert,
                         expert > 1 ? shards / expert : 1, stages.count}) {
    communicators += size > 1;
  }
  // Two for each neighbour. With one chunk a stage between two others has the most.
  if (stages.count > 1) communicators += parallel::kMessages * (stages.count > 2 || stages.chunks > 1 ? 2 : 1);
  return {.context = kContextBytes, .nccl = communicators * kCommunicatorBytes};
}

namespace {

// For each stage, the first stage that does the same work: it has as many blocks of the same kinds in each chunk. The first
// stage has the embedding and the last one the head, so no other stage equals them. Among equal stages, the first one has the
// most micro-batches under way, so it takes the most memory.
std::vector<int> stages_alike(const train::Config& config, const parallel::Mesh& mesh) {
  const parallel::Stages stages = mesh.stages();
  const std::vector<BlockKind> kinds = block_kinds(config);
  std::vector<std::vector<std::vector<BlockKind>>> chunks(static_cast<std::size_t>(stages.count));
  for (int chunk = 0; chunk < stages.count * stages.chunks; ++chunk) {
    const parallel::BlockRange range = parallel::blocks_of(static_cast<int>(kinds.size()), stages, chunk);
    chunks[static_cast<std::size_t>(chunk % stages.count)].emplace_back(kinds.begin() + range.begin, kinds.begin() + range.end);
  }
  std::vector<int> result = {0};
  for (int stage = 1; stage < stages.count; ++stage) {
    const auto middle = chunks.begin() + 1, own = chunks.begin() + stage;
    result.push_back(stage + 1 == stages.count ? stage : static_cast<int>(std::find(middle, own, *own) - chunks.begin()));
  }
  return result;
}

// Returns the first ranks of the stages that differ, and of `stage`. Without a pipeline this is rank 0.
std::vector<int> first_ranks(const train::Config& config, const parallel::Mesh& mesh, std::optional<int> stage) {
  const std::vector<int> alike = stages_alike(config, mesh);
  std::set<int> stages(alike.begin(), alike.end());
  if (stage) stages.insert(*stage);
  std::vector<int> ranks;
  for (const int s : stages) ranks.push_back(s * (mesh.ranks() / mesh.stages().count));
  return ranks;
}

bool is_of_stage(const parallel::Mesh& mesh, int rank, std::optional<int> stage) {
  return !stage || mesh.coordinate(parallel::Axis::pipeline, rank) == *stage;
}

// Returns the backward call that needs the largest workspace.
LibraryWorkspace attention_of(const train::EngineOptions& options) {
  using parallel::Axis;
  const std::int64_t tensor = options.layout.mesh.size(Axis::tensor), c = options.layout.mesh.size(Axis::context);
  const std::vector<bool>& sees_all = options.model.sees_all;
  const bool unmasked = std::find(sees_all.begin(), sees_all.end(), true) != sees_all.end();
  kernels::AttentionShape shape{.batch = c > 1 ? 1 : options.micro_batch_size,
                                .heads = options.model.heads / tensor,
                                .kv_heads = std::max<std::int64_t>(1, options.model.kv_heads / tensor),
                                .head_dim = options.model.head_dim,
                                .window = unmasked ? 0 : options.model.sliding_window,
                                .deterministic = options.deterministic};
  std::int64_t sq = c > 1 ? options.seq_len / (2 * c) : options.seq_len;
  // The last chunk of a sequence sees the most of it.
  const std::int64_t seen = options.seq_len - kernels::attention_unseen_keys(shape, sq, options.seq_len);
  if (options.document_mask) {
    const std::int64_t packed = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    return {.bytes = kernels::document_backward_workspace(shape, shape.batch * sq, shape.batch * seen, packed),
            .version = "",
            .shape = fmt::format("{} heads on {}, of {}; documents of {} x {} queries on {} keys", shape.heads, shape.kv_heads,
                                 shape.head_dim, shape.batch, sq, seen)};
  }
  std::int64_t sk = seen;
  if (c > 1 && !nn::keeps_keys_in_order(shape, options.seq_len, static_cast<int>(c))) {
    // nn/context_attention.cpp: chunks on their own keys; the first rank's last chunk, which has the most before it.
    struct Call {
      std::int64_t batch, sq, sk;
    };
    const auto bytes = [&](const Call& call) {
      shape.batch = call.batch;
      return kernels::attention_backward_workspace(shape, call.sq, call.sk);
    };
    const Call calls[] = {{2 * options.micro_batch_size, sq, sq}, {1, sq, (2 * c - 1) * sq}};
    const Call& largest =
        *std::max_element(std::begin(calls), std::end(calls), [&](const Call& a, const Call& b) { return bytes(a) < bytes(b); });
    shape.batch = largest.batch;
    sq = largest.sq;
    sk = largest.sk;
  }
  const bool fp8 = options.recipe.attention == AttentionPrecision::fp8;
  if (fp8) shape.batch = 1;  // each sequence has a call of its own
  const kernels::AttentionWorkspaceRow* row = kernels::find_attention_workspace(shape, sq, sk, fp8);
  return {
      .bytes = fp8 ? kernels::attention_backward_fp8_workspace(shape, sq) : kernels::attention_backward_workspace(shape, sq, sk),
      .version = row ? std::string(row->version) : "",
      .shape = fmt::format("{} heads on {}, of {}; {} x {} queries on {} keys{}{}", shape.heads, shape.kv_heads, shape.head_dim,
                           shape.batch, sq, sk, shape.deterministic ? ", deterministic" : "", fp8 ? ", in FP8" : "")};
}

// A counted step of a rank, with everything to which its names refer.
struct Counted {
  train::EngineOptions options;
  parallel::Groups groups;
  plan::Spans spans;
  train::StepCount count;
  plan::Step step;
  std::vector<std::vector<plan::TimedPass>> passes;  // of all stages of a pipeline

  train::StepCount count_step(const plan::Cluster& cluster, std::int64_t micro_batches) const {
    const auto seconds = [&](const char* op, const Work& work) { return plan::op_seconds(cluster, spans, op, work); };
    return train::count_step(options, groups, seconds, micro_batches);
  }
};

train::EngineOptions options_of(const train::Config& config, const parallel::Mesh& mesh, int rank) {
  train::EngineOptions options = train::engine_options(config, train::recipe_of(config, DeviceKind::cuda, recipes::kHopper));
  options.layout = train::layout_of(config, mesh);
  options.rank = rank;
  return options;
}

Counted count_rank(const train::Config& config, const plan::Cluster& cluster, const parallel::Mesh& mesh, int rank) {
  const bool tensor_reaches = plan::widest_span(mesh, {parallel::Axis::tensor}, cluster.per_node()).nodes == 1;
  Counted c{.options = options_of(config, mesh, rank), .groups = parallel::silent_groups(mesh, rank, tensor_reaches)};
  c.spans = plan::spans_of(mesh, c.groups, rank, cluster.per_node());
  c.count = c.count_step(cluster, train::accumulation_of(config, mesh.data_coordinates()));
  return c;
}

// Returns the time of all stages. `ranks` are the first_ranks().
plan::PipelineTime pipeline_of(const train::Config& config, const std::vector<Counted>& ranks, const plan::Cluster& cluster) {
  const parallel::Mesh& mesh = ranks.front().options.layout.mesh;
  const parallel::Stages stages = mesh.stages();
  const std::vector<int> alike = stages_alike(config, mesh);
  std::map<int, plan::PassTimes> times;
  for (const Counted& c : ranks)
    times[mesh.coordinate(parallel::Axis::pipeline, c.options.rank)] = plan::pass_times(c.count.tasks, stages.chunks);
  const auto seconds = [&](int stage, const parallel::Visit& visit) {
    return times.at(alike[static_cast<std::size_t>(stage)]).of(visit);
  };
  const train::EngineOptions& options = ranks.front().options;
  const std::int64_t tokens =
      options.micro_batch_size * options.seq_len / mesh.size({parallel::Axis::context, parallel::Axis::tensor});
  const double bytes = static_cast<double>(tokens * options.model.dim) * static_cast<double>(size_of(DType::bf16));
  const std::int64_t micro_batches = train::accumulation_of(config, mesh.data_coordinates());
  std::vector<double> message_s;
  for (int stage = 0; stage < stages.count; ++stage) {
    const plan::Span link = plan::link_span(mesh, stage, cluster.per_node());
    message_s.push_back(plan::exchange_seconds(cluster.gpu, link, "send", bytes, false));
  }
  return plan::pipeline_time(stages, static_cast<int>(micro_batches), seconds, message_s);
}

// Counts the step of a rank of `stage`, or of the stage that is busy longest.
Counted count_run(const train::Config& config, const plan::Cluster& cluster, std::optional<int> stage) {
  const parallel::Mesh mesh = train::mesh_of(config, cluster.gpus);
  std::vector<Counted> ranks;
  for (const int rank : first_ranks(config, mesh, stage)) ranks.push_back(count_rank(config, cluster, mesh, rank));
  plan::PipelineTime pipeline;
  if (ranks.size() > 1) pipeline = pipeline_of(config, ranks, cluster);
  std::vector<double> idle;
  std::vector<Counted> candidates;
  for (Counted& c : ranks) {
    if (!is_of_stage(mesh, c.options.rank, stage)) continue;
    idle.push_back(ranks.size() > 1 ? pipeline.idle(mesh.coordinate(parallel::Axis::pipeline, c.options.rank)) : 0.0);
    candidates.push_back(std::move(c));
  }
  const auto slowest = static_cast<std::size_t>(std::min_element(idle.begin(), idle.end()) - idle.begin());
  Counted c = std::move(candidates[slowest]);
  c.passes = std::move(pipeline.passes);
  const double tokens =
      static_cast<double>(config.training.global_batch_size * c.options.seq_len) / static_cast<double>(cluster.gpus);
  c.step = plan::step_of(cluster, c.spans, c.count.compute, c.count.params, c.count.seconds, tokens, c.options.flops_per_token(),
                         idle[slowest], plan::state_copies(c.count.update).exposed_s);
  return c;
}

}  // namespace

// Ranks of a context group differ in the keys that their chunks see: the first or the last one takes most.
std::vector<int> largest_ranks(const train::Config& config, const parallel::Mesh& mesh, std::optional<int> stage) {
  const int last = mesh.size({parallel::Axis::context, parallel::Axis::tensor}) - 1;
  std::vector<int> ranks;
  for (const int first : first_ranks(config, mesh, stage)) {
    if (!is_of_stage(mesh, first, stage)) continue;
    ranks.push_back(first);
    if (last > 0) ranks.push_back(first + last);
  }
  return ranks;
}

RankMemory most_memory(const train::Config& config, const parallel::Mesh& mesh, std::optional<int> stage) {
  RankMemory most;
  for (const int rank : largest_ranks(config, mesh, stage)) {
    const train::MemoryPlan plan = train::measure_run(config, mesh, rank);
    if (plan.total() > most.plan.total()) most = {plan, rank};
  }
  return most;
}

std::vector<BlockKind> block_kinds(const train::Config& config) {
  const models::DecoderConfig model = train::decoder_config(config);
  // "down_proj" means it in every layer; "3.mlp.down_proj" does not.
  bool names_layers = !config.precision.skip.empty();
  if (config.lora) {
    for (const std::string& target : config.lora->targets) names_layers = names_layers || target.find('.') != std::string::npos;
  }
  const std::int64_t full = config.activation_checkpoint.layers;
  std::vector<BlockKind> kinds;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    kinds.push_back({.mixture = model.is_mixture(layer),
                     .recomputed = full < 0 || layer < full,
                     .window = model.window(layer),
                     .layer = names_layers ? layer : -1});
  }
  return kinds;
}

std::size_t memory_of_rank(const train::Config& config, const plan::Cluster& cluster, int rank) {
  const parallel::Mesh mesh = train::mesh_of(config, cluster.gpus);
  return train::measure_run(config, mesh, rank).total() + overhead_of(mesh).total();
}

std::size_t memory_of(const train::Config& config, const plan::Cluster& cluster) {
  const parallel::Mesh mesh = train::mesh_of(config, cluster.gpus);
  return most_memory(config, mesh, {}).plan.total() + overhead_of(mesh).total();
}

plan::Step step_of(const train::Config& config, const plan::Cluster& cluster) { return count_run(config, cluster, {}).step; }

PlannedRun plan_run(const train::Config& config, const plan::Cluster& cluster, std::optional<int> stage) {
  const Counted c = count_run(config, cluster, stage);
  const parallel::Mesh& mesh = c.options.layout.mesh;
  const RankMemory memory = most_memory(config, mesh, stage);
  PlannedRun run{.run = config.run.name,
                 .recipe = c.options.recipe.name,
                 .local_dir = config.checkpoint.local_dir,
                 .parameters = c.options.model.parameters(),
                 .cluster = cluster,
                 .layout = {.mesh = mesh,
                            .weights = c.options.layout.weights,
                            .gradients = c.options.layout.gradients,
                            .checkpointing = c.options.checkpointing,
                            .full_layers = config.activation_checkpoint.layers,
                            .micro_batch = c.options.micro_batch_size},
                 .seq_len = c.options.seq_len,
                 .micro_batches = train::accumulation_of(config, mesh.data_coordinates()),
                 .memory = memory.plan,
                 .memory_rank = memory.rank,
                 .overhead = overhead_of(mesh),
                 .attention = attention_of(c.options),
                 .step = c.step,
                 .has_rates = recipes::multiplies(recipes::kHopper, c.options.recipe),
                 .exchanges = {},
                 .ops = {},
                 .ranges = c.count.ranges,
                 .tasks = c.count.tasks,
                 .last = c.count.last,
                 .update = c.count.update,
                 .shape = c.count.shape,
                 .passes = c.passes};
  const std::int64_t enough = 3 * c.options.layout.lanes;
  const bool few = run.shape.stages.count == 1 && run.micro_batches < enough;
  run.exchanges = exchanges_of(c.count, few ? c.count_step(cluster, enough) : c.count, c.spans);
  for (const OpTime& op : c.count.compute) {
    if (op.work.group.empty()) run.ops.push_back(op);
  }
  return run;
}

plan::ParameterTable parameters_of(const train::Config& config, const plan::Cluster& cluster, int rank) {
  const parallel::Mesh mesh = train::mesh_of(config, cluster.gpus);
  const parallel::Groups groups = parallel::silent_groups(mesh, rank);
  const auto device = make_meta_device(DeviceKind::cuda);
  train::Engine engine(options_of(config, mesh, rank), *device, groups);
  return plan::parameter_table(engine.model().parameters(), engine.model().units());
}

// A checkpoint is the same on every mesh, so an engine of one rank lists it.
std::uint64_t checkpoint_bytes_of(const train::Config& config) {
  train::Config alone = config;
  alone.parallel = {};
  const parallel::Mesh mesh = train::mesh_of(alone, 1);
  const parallel::Groups groups = parallel::silent_groups(mesh, 0);
  const auto device = make_meta_device(DeviceKind::cuda);
  train::Engine engine(options_of(alone, mesh, 0), *device, groups);
  return train::bytes_of_checkpoint(engine.entries());
}

}  // namespace octet::app
