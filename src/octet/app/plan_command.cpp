// `octet plan`: what a run takes and how fast it should be on a cluster, without one.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/gpus.h"
#include "octet/app/picture_file.h"
#include "octet/app/plan.h"
#include "octet/app/work_progress.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/math.h"
#include "octet/plan/pipeline_time.h"
#include "octet/recipes/registry.h"
#include "octet/report/lanes.h"
#include "octet/report/memory_bar.h"
#include "octet/telemetry/format.h"
#include "octet/train/setup.h"
#include "octet/train/trainer.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

// As `octet train` settles it: the first layout that fits. Where none does, the one that takes least.
train::Config settled(const train::Config& given, const plan::Cluster& cluster) {
  train::Config least = given;
  std::size_t least_bytes = std::numeric_limits<std::size_t>::max();
  for (const train::Config& layout : train::layouts_allowed(given, train::mesh_of(given, cluster.gpus))) {
    const std::size_t bytes = memory_of(layout, cluster);
    if (bytes <= cluster.gpu.memory_bytes) return layout;
    if (bytes < least_bytes) least = layout;
    least_bytes = std::min(bytes, least_bytes);
  }
  return least;
}

// As the run's own checks say.
bool divides(const train::Config& config, const plan::Cluster& cluster) {
  try {
    train::check_config(config, cluster.gpus);
    train::mesh_of(config, cluster.gpus);
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::config) throw;
    return false;
  }
}

[[noreturn]] void does_not_fit(const PlannedRun& run, const train::Config& config, const plan::Cluster& cluster) {
  std::string advice;
  const auto suggest = [&](const std::string& what, const auto& change) {
    train::Config other = config;
    change(other);
    if (!divides(other, cluster)) return;
    const std::size_t bytes = memory_of(other, cluster);
    if (static_cast<double>(bytes) <= 0.99 * static_cast<double>(run.needed()))  // less would not show in three digits
      advice += fmt::format("{}{} ({})", advice.empty() ? "" : ", ", what, telemetry::format_bytes(bytes));
  };
  suggest("activation_checkpoint.mode = \"full\"", [](train::Config& c) { c.activation_checkpoint.mode = "full"; });
  suggest("precision.weight_transpose_cache = false", [](train::Config& c) { c.precision.weight_transpose_cache = false; });
  suggest("optimizer.state_dtype = \"bf16\"", [](train::Config& c) { c.optimizer.state_dtype = "bf16"; });
  suggest("optimizer.offload = true", [](train::Config& c) { c.optimizer.offload = true; });
  suggest("half the micro-batch", [](train::Config& c) { c.training.micro_batch_size /= 2; });
  suggest("parallel.replicate = 1", [](train::Config& c) {
    c.parallel.replicate = 1;
    c.parallel.shard = -1;
  });
  suggest("twice the context axis", [](train::Config& c) {
    c.parallel.context *= 2;
    c.parallel.shard = -1;
  });
  suggest("twice the pipeline stages", [](train::Config& c) {
    c.parallel.pipeline *= 2;
    c.parallel.shard = -1;
  });
  suggest("twice the tensor axis", [](train::Config& c) {
    c.parallel.tensor *= 2;
    c.parallel.shard = -1;
  });
  fail(ExitCode::does_not_fit, "this run needs ", telemetry::format_bytes(run.needed()), " of a GPU, and an ", cluster.gpu.name,
       " has ", telemetry::format_bytes(cluster.gpu.memory_bytes), "; what helps: ", advice.empty() ? "" : advice + ", ",
       "more GPUs in parallel.shard; --search tries every layout");
}

const char* mode_name(nn::Checkpointing mode) {
  return mode == nn::Checkpointing::full ? "full" : mode == nn::Checkpointing::selective ? "selective" : "none";
}

train::Config config_of(const train::Config& config, const plan::LayoutChoice& choice) {
  using parallel::Axis;
  train::Config result = config;
  result.parallel.pipeline = choice.mesh.size(Axis::pipeline);
  result.parallel.pipeline_chunks = choice.mesh.stages().chunks;
  result.parallel.pipeline_schedule = choice.mesh.stages().chunks > 1 ? "interleaved" : "1f1b";
  result.parallel.replicate = choice.mesh.size(Axis::replicate);
  result.parallel.shard = choice.mesh.size(Axis::shard);
  result.parallel.context = choice.mesh.size(Axis::context);
  result.parallel.tensor = choice.mesh.size(Axis::tensor);
  result.parallel.expert = choice.mesh.expert();
  result.parallel.reshard_after_forward = choice.weights == parallel::Weights::resharded ? "true" : "false";
  result.parallel.gradients = choice.gradients == parallel::Gradients::sharded ? "sharded" : "whole";
  result.activation_checkpoint.mode = mode_name(choice.checkpointing);
  result.activation_checkpoint.layers = -1;  // a search chooses for all layers
  result.training.micro_batch_size = choice.micro_batch;
  return result;
}

// Everything of a layout is a first part and an equal part for each layer, once there are a few; so that a search runs few
// layers. A pipeline's chunks grow alike. Where layers of several kinds take turns, the equal part is that of a period.
class Slices {
 public:
  Slices(const train::Config& config, const plan::Cluster& cluster)
      : config_(config), cluster_(cluster), layers_(train::decoder_config(config).layers), period_(period()) {}

  // Looks at one rank after another, until one does not fit. Returns the largest number if building the
  // engine fails because it refuses the layout.
  std::size_t memory_of(const plan::LayoutChoice& choice) const {
    std::size_t most = least_of_stage(choice);
    if (most > cluster_.gpu.memory_bytes) return most;
    try {
      for (const int rank : largest_ranks(config_of(config_, choice), choice.mesh)) {
        most = std::max(most, memory_of_rank(choice, rank));
        if (most > cluster_.gpu.memory_bytes) break;
      }
    } catch (const Error& error) {
      note_refusal(error);
      return std::numeric_limits<std::size_t>::max();
    }
    accepted_ = true;
    return most;
  }

  // Returns a step of no speed if building the engine fails because it refuses the layout.
  plan::Step step_of(const plan::LayoutChoice& choice) const {
    try {
      return stages_of(choice).count == 1 || period_ == 0 ? step_of(choice, cluster_, layers_) : step_of_stage(choice);
    } catch (const Error& error) {
      note_refusal(error);
      return {};
    }
  }

  // Throws Error{config} as the first layout did if the engine refused every layout that was built.
  void demand_accepted() const { demand(accepted_ || refusal_.empty(), ExitCode::config, refusal_); }

 private:
  static constexpr std::int64_t kFew = 4, kMore = 6;
  void note_refusal(const Error& error) const {
    if (error.code() != ExitCode::config) throw;
    if (refusal_.empty()) refusal_ = error.what();
  }
  // The least number of layers after which their kinds repeat: 1 if all are alike. 0 if a slice would not stand for the whole
  // model.
  std::int64_t period() const {
    const std::vector<BlockKind> kinds = block_kinds(config_of(config_, {}));
    const auto repeat_after = [&](std::int64_t layers) { return std::equal(kinds.begin() + layers, kinds.end(), kinds.begin()); };
    std::int64_t period = 1;
    while (!repeat_after(period)) ++period;
    const std::int64_t more = round_up(kFew, period) + round_up(kMore - kFew, period);
    if (period > 1 && more >= layers_) return 0;
    const std::int64_t layers = std::min(more, std::max<std::int64_t>(1, layers_ - 1));
    try {  // attention_types of GPT-Neo lists every layer, so there are no slices
      const std::vector<BlockKind> slice = block_kinds(this->slice({}, layers));
      return std::equal(slice.begin(), slice.end(), kinds.begin()) ? period : 0;
    } catch (const Error&) {
      return 0;
    }
  }
  // A pipeline stage does what a model of its blocks and the head would do on the stage's part of the cluster, and waits for the
  // other stages. This leaves messages out. It only chooses the pipelines that are planned whole.
  plan::Step step_of_stage(const plan::LayoutChoice& choice) const {
    const parallel::Stages stages = stages_of(choice);
    std::int64_t blocks = 0;  // of the last stage
    for (int chunk = stages.count - 1; chunk < stages.count * stages.chunks; chunk += stages.count)
      blocks += parallel::blocks_of(static_cast<int>(layers_), stages, chunk).count();
    plan::LayoutChoice alone = choice;
    alone.mesh = choice.mesh.with(parallel::Stages{});
    plan::Cluster part = cluster_;
    part.gpus = alone.mesh.ranks();
    part.nodes = static_cast<int>(ceil_div(part.gpus, cluster_.per_node()));
    plan::Step step = step_of(alone, part, std::max<std::int64_t>(1, blocks));
    const double tokens = step.tokens_per_s * step.seconds / stages.count;
    step.bubble_s = step.seconds * plan::ideal_bubble(stages, train::accumulation_of(config_of(config_, choice),
                                                                                     choice.mesh.data_coordinates()));
    step.seconds += step.bubble_s;
    step.tokens_per_s = tokens / step.seconds;
    return step;
  }
  static double extrapolate(std::int64_t few, double at_few, std::int64_t more, double at_more, std::int64_t all) {
    return at_more + (at_more - at_few) * static_cast<double>(all - more) / static_cast<double>(more - few);
  }
  // Returns a lower bound of the bytes that the fullest stage takes: one byte for each weight that it keeps, and its whole
  // gradients. Building an engine would take much longer.
  std::size_t least_of_stage(const plan::LayoutChoice& choice) const {
    const parallel::Mesh& mesh = choice.mesh;
    const double weights = static_cast<double>(train::decoder_config(config_).parameters()) /
                           (mesh.stages().count * mesh.size(parallel::Axis::tensor) * mesh.expert());
    const double bytes =
        (choice.weights == parallel::Weights::kept ? 1 : 0) + (choice.gradients == parallel::Gradients::whole ? 2 : 0);
    return mesh.stages().count > 1 ? static_cast<std::size_t>(bytes * weights) : 0;
  }
  parallel::Stages stages_of(const plan::LayoutChoice& choice) const {
    return train::mesh_of(config_of(config_, choice), cluster_.gpus).stages();
  }
  std::size_t memory_of_rank(const plan::LayoutChoice& choice, int rank) const {
    const parallel::Stages stages = stages_of(choice);
    const std::int64_t chunks = std::int64_t{stages.count} * stages.chunks;
    const std::int64_t missing = layers_ % chunks == 0 ? 0 : 2;  // at the ends of the model
    const auto bytes = [&](std::int64_t each) {
      return static_cast<double>(app::memory_of_rank(slice(choice, each * chunks - missing), cluster_, rank));
    };
    // The last chunk has at most as many blocks less than the others as the head counts, and still needs one.
    const std::int64_t all = (layers_ + missing) / chunks, period = std::max<std::int64_t>(1, period_);
    const std::int64_t few =
                           round_up(std::max<std::int64_t>(stages.chunks > 1 ? kFew / 2 : kFew, stages.head_blocks + 1), period),
                       more = few + round_up((kMore - kFew) / (stages.chunks > 1 ? 2 : 1), period);
    if (period_ == 0 || all <= more) return app::memory_of_rank(config_of(config_, choice), cluster_, rank);
    return static_cast<std::size_t>(extrapolate(few, bytes(few), more, bytes(more), all));
  }
  plan::Step step_of(const plan::LayoutChoice& choice, const plan::Cluster& cluster, std::int64_t layers) const {
    // A stage of few layers may lack a kind of layer. So its time is read off the line through two slices that have all kinds.
    if (period_ == 0 || (period_ == 1 && layers <= kMore)) return app::step_of(slice(choice, layers), cluster);
    const std::int64_t at_few = round_up(kFew, period_), at_more = at_few + round_up(kMore - kFew, period_);
    const plan::Step few = app::step_of(slice(choice, at_few), cluster), more = app::step_of(slice(choice, at_more), cluster);
    plan::Step step = more;
    for (double plan::Step::*part : {&plan::Step::seconds, &plan::Step::compute_s, &plan::Step::memory_s, &plan::Step::waited_s,
                                     &plan::Step::exposed_s, &plan::Step::copies_s, &plan::Step::wire_s}) {
      step.*part = extrapolate(at_few, few.*part, at_more, more.*part, layers);
    }
    step.tokens_per_s = more.tokens_per_s * more.seconds / step.seconds;
    return step;
  }
  train::Config slice(const plan::LayoutChoice& choice, std::int64_t layers) const {
    train::Config result = config_of(config_, choice);
    result.model.num_hidden_layers = layers;
    return result;
  }

  const train::Config& config_;
  const plan::Cluster& cluster_;
  std::int64_t layers_, period_;
  mutable bool accepted_ = false;
  mutable std::string refusal_;
};

// Shows how far a search is. Each phase counts something else and has an estimate of its own.
class SearchProgress {
 public:
  void operator()(const char* what, std::int64_t done, std::int64_t total) {
    if (what_ != what) shown_.emplace("searching", what);
    what_ = what;
    (*shown_)(done, total);
  }

 private:
  std::string what_;
  std::optional<WorkProgress> shown_;
};

// Makes whole plans of the fastest layouts, whose order may change by that. Stops when as many as are wanted are in their final
// order. Erases layouts whose whole plan does not fit.
std::vector<PlannedRun> plan_fastest(const train::Config& config, const plan::Cluster& cluster, std::vector<plan::Found>& found,
                                     SearchProgress& progress) {
  std::vector<PlannedRun> best;
  std::size_t whole = 0;  // the first ones of `found`
  const auto faster = [](const auto& a, const auto& b) { return a.step.tokens_per_s > b.step.tokens_per_s; };
  while (whole < found.size() && (whole < plan::kWanted || faster(found[whole], best[plan::kWanted - 1]))) {
    PlannedRun run = plan_run(config_of(config, found[whole].choice), cluster);
    if (!run.fits()) {
      found.erase(found.begin() + static_cast<std::ptrdiff_t>(whole));
      continue;
    }
    found[whole++].step = run.step;
    best.push_back(std::move(run));
    std::stable_sort(best.begin(), best.end(), faster);
    std::stable_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(whole), faster);
    progress("whole plans", static_cast<std::int64_t>(std::min(whole, plan::kWanted)), static_cast<std::int64_t>(plan::kWanted));
  }
  best.erase(best.begin() + static_cast<std::ptrdiff_t>(std::min(best.size(), plan::kWanted)), best.end());
  return best;
}

int run_search(const train::Config& config, const plan::Cluster& cluster, bool json) {
  const std::int64_t experts = std::max<std::int64_t>(1, train::decoder_config(config).experts);
  train::Config one = config_of(config, {});  // has the mistakes that no layout would mend
  one.training.global_batch_size = 1;
  if (experts > 1) one.parallel.expert_lanes = 1;
  train::check_config(one);
  const Slices slices(config, cluster);
  std::optional<SearchProgress> progress(std::in_place);
  std::vector<plan::Found> found = plan::search_layouts(
      {.cluster = cluster,
       .seq_len = config.training.seq_len,
       .global_batch = config.training.global_batch_size,
       .experts = experts,
       .blocks = train::decoder_config(config).layers,
       .memory_bytes = cluster.gpu.memory_bytes,
       .divides = [&](const plan::LayoutChoice& choice) { return divides(config_of(config, choice), cluster); },
       .memory_of = [&](const plan::LayoutChoice& choice) { return slices.memory_of(choice); },
       .step_of = [&](const plan::LayoutChoice& choice) { return slices.step_of(choice); },
       .progress = [&](const char* what, std::int64_t done, std::int64_t total) { (*progress)(what, done, total); }});
  const std::vector<PlannedRun> best = plan_fastest(config, cluster, found, *progress);
  progress.reset();  // takes its line off the terminal
  if (best.empty()) slices.demand_accepted();
  demand(!best.empty(), ExitCode::does_not_fit, "no layout of ", cluster.gpus, " ", cluster.gpu.name,
         " fits and divides training.global_batch_size = ", config.training.global_batch_size,
         "; what helps: more GPUs, a shorter training.seq_len, optimizer.state_dtype = \"bf16\", optimizer.offload = true");
  const std::string why = plan::why_first(found);
  fmt::print("{}", json ? search_json(best, found.size(), why) : search_text(best, found.size(), why));
  return 0;
}

std::string parameters_said(const train::Config& config, const plan::Cluster& cluster, const PlannedRun& run, bool json) {
  const plan::ParameterTable table = parameters_of(config, cluster, run.memory_rank);
  return json ? parameters_json(run, table) : parameters_text(run, table);
}

// One GB/s for each node is an assumption; octet bench checkpoint measures what a machine reaches.
GoodputOptions goodput_options(const train::Config& config, const plan::Cluster& cluster, const PlanArgs& args) {
  demand(config.checkpoint.interval > 0, ExitCode::config,
         "checkpoint.interval = 0 saves at the end only, so that a failure loses everything; --goodput needs an interval");
  double rate = 1e9 * cluster.nodes;
  if (!args.storage.empty()) {
    const std::optional<std::int64_t> bytes = telemetry::parse_bytes(args.storage);
    demand(bytes.value_or(0) > 0, ExitCode::config, "--storage ", args.storage, ": give bytes in a second, like 20GB");
    rate = static_cast<double>(*bytes);
  }
  return {.mtbf_hours = args.mtbf_hours, .storage_bytes_per_s = rate, .checkpoint_bytes = checkpoint_bytes_of(config)};
}

std::string goodput_said(const train::Config& config, const plan::Cluster& cluster, const PlannedRun& run, const PlanArgs& args) {
  const GoodputOptions options = goodput_options(config, cluster, args);
  return args.json ? goodput_json(run, config, options) : goodput_text(run, config, options);
}

}  // namespace

int run_plan(const PlanArgs& args) {
  if (args.json) set_log(Log::warnings);
  const plan::Cluster cluster = parse_cluster(args.gpus, args.nodes);
  if (!args.picture.empty()) {
    const auto is_ours = [](std::string_view begin) { return report::is_memory_bar(begin) || report::is_lanes(begin); };
    check_picture_name(args.picture);
    check_picture(args.picture, is_ours, "octet plan");
  }
  train::Config config = load_run(args.run, train::Fetch::architecture);
  config.run.device = "cuda";
  const char* timed = args.search ? "--search" : args.schedule ? "--schedule" : args.goodput ? "--goodput" : "";
  demand(!*timed ||
             recipes::multiplies(recipes::kHopper, train::recipe_of(config, DeviceKind::cuda, recipes::kHopper)),
         ExitCode::config, "octet plan ", timed, ": precision.recipe = \"",
         config.precision.recipe, "\" is emulated on an ", cluster.gpu.name,
         ", and the emulation's rate is not known; plan another recipe");
  if (args.search) return run_search(config, cluster, args.json);
  train::check_config(config, cluster.gpus);
  config = settled(config, cluster);
  const int stages = train::mesh_of(config, cluster.gpus).stages().count;
  demand(args.stage.value_or(0) < stages, ExitCode::config, "--stage ", args.stage.value_or(0), ": the run has ",
         stages == 1 ? "one pipeline stage; its number is 0"
                     : concat(stages, " pipeline stages; their numbers are 0 to ", stages - 1));
  const PlannedRun run = plan_run(config, cluster, args.stage);
  fmt::print("{}", args.parameters ? parameters_said(config, cluster, run, args.json)
                   : args.goodput  ? goodput_said(config, cluster, run, args)
                   : args.schedule ? (args.json ? schedule_json(run) : schedule_text(run))
                   : args.json     ? plan_json(run)
                                   : plan_text(run));
  std::fflush(stdout);
  if (args.picture.has_parent_path()) make_folders(args.picture.parent_path());
  if (!args.picture.empty()) write_output(args.picture, args.schedule ? schedule_picture(run) : memory_picture(run));
  if (!run.fits()) does_not_fit(run, config, cluster);
  return 0;
}

}  // namespace octet::app
