// The results of `octet plan` for a run on a cluster.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/plan/layout_search.h"
#include "octet/plan/parameter_table.h"
#include "octet/plan/pipeline_time.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"
#include "octet/train/step_count.h"

namespace octet::app {

// Memory that the plan does not include.
struct Overhead {
  std::size_t context = 0;  // CUDA and its libraries
  std::size_t nccl = 0;     // buffers of the communicators
  std::size_t total() const { return context + nccl; }
};
Overhead overhead_of(const parallel::Mesh& mesh);

// The memory that cuDNN takes for the largest of the run's attention calls; a part of the plan's workspace.
struct LibraryWorkspace {
  std::size_t bytes = 0;
  std::string version;  // of the table's row; empty: the shape has none, and this is an estimate
  std::string shape;    // "32 heads on 8, of 128; 1 x 8192 queries on 8192 keys"
};

struct Exchange {
  std::string group;  // "shard x context"
  std::string op;     // "all_gather"
  plan::Span span;
  double bytes = 0, seconds = 0;  // of a step
  std::optional<double> each_bytes;  // that one micro-batch more would add; unknown with pipeline stages
  plan::Sent sent;
};

struct PlannedRun {
  std::string run, recipe;
  std::string local_dir;  // checkpoint.local_dir
  std::int64_t parameters = 0;
  plan::Cluster cluster;
  plan::LayoutChoice layout;
  std::int64_t seq_len = 0, micro_batches = 0;  // of a step and data-parallel rank
  train::MemoryPlan memory;                     // of memory_rank
  int memory_rank = 0;                          // the one that takes most
  Overhead overhead;
  LibraryWorkspace attention;
  plan::Step step;
  bool has_rates = true;  // false: GPUs emulate the recipe, at a rate that nobody measured, so the times of `step` mean nothing
  std::vector<Exchange> exchanges;
  std::vector<OpTime> ops;  // of the computation, with their predicted seconds in a step
  std::vector<train::StepRange> ranges;
  std::vector<parallel::TimedTask> tasks, last, update;  // as in train::StepCount
  parallel::StepShape shape;
  // The passes of each pipeline stage; empty if there is one stage.
  std::vector<std::vector<plan::TimedPass>> passes;

  std::size_t needed() const { return memory.total() + overhead.total(); }
  bool fits() const { return needed() <= cluster.gpu.memory_bytes; }
};

// The functions below expect a configuration that was checked for the cluster, and whose layout is settled. Returns the bytes
// that the fullest rank takes on its GPU, including those of CUDA and NCCL.
std::size_t memory_of(const train::Config& config, const plan::Cluster& cluster);
// Return the same for one rank; and the ranks among which the fullest one is.
std::size_t memory_of_rank(const train::Config& config, const plan::Cluster& cluster, int rank);
std::vector<int> largest_ranks(const train::Config& config, const parallel::Mesh& mesh, std::optional<int> stage = {});
// The memory plan of the rank that takes most, among all ranks or those of `stage`.
struct RankMemory {
  train::MemoryPlan plan;
  int rank = 0;
};
RankMemory most_memory(const train::Config& config, const parallel::Mesh& mesh, std::optional<int> stage = {});
// Properties that can make the memory or time of one block differ from another's.
struct BlockKind {
  bool mixture = false, recomputed = false;  // recomputed: activation_checkpoint.layers counts it
  std::int64_t window = 0;
  std::int64_t layer = -1;  // its number, if patterns of precision.skip or lora.targets may name single layers
  bool operator==(const BlockKind&) const = default;
};
// The kind of each block of the model.
std::vector<BlockKind> block_kinds(const train::Config& config);
plan::Step step_of(const train::Config& config, const plan::Cluster& cluster);
// If `stage` is given, plans this pipeline stage instead of the stage that takes most memory and the one that is busy longest.
PlannedRun plan_run(const train::Config& config, const plan::Cluster& cluster, std::optional<int> stage = {});
// The parameters of a rank.
plan::ParameterTable parameters_of(const train::Config& config, const plan::Cluster& cluster, int rank);

std::uint64_t checkpoint_bytes_of(const train::Config& config);

// "64 H100 in 8 nodes of 8"
std::string cluster_text(const plan::Cluster& cluster);
// "forward m3"; with several chunks on a stage "forward m3 chunk 1"
std::string pass_text(const parallel::Visit& visit, int chunks);
std::string plan_text(const PlannedRun& run);
std::string plan_json(const PlannedRun& run);
// Returns the predicted timeline of a step: a line for each named range with its stream, begin and end; the passes of all
// pipeline stages; and the list of tasks.
std::string schedule_text(const PlannedRun& run);
std::string schedule_json(const PlannedRun& run);
// For --parameters: returns the memory that each parameter of run.memory_rank takes.
std::string parameters_text(const PlannedRun& run, const plan::ParameterTable& table);
std::string parameters_json(const PlannedRun& run, const plan::ParameterTable& table);
// For --goodput: the share of time that remains after failures and saves (plan/goodput.h).
struct GoodputOptions {
  double mtbf_hours = 0;              // of one GPU
  double storage_bytes_per_s = 0;     // of all nodes together
  std::uint64_t checkpoint_bytes = 0;
};
std::string goodput_text(const PlannedRun& run, const train::Config& config, const GoodputOptions& options);
std::string goodput_json(const PlannedRun& run, const train::Config& config, const GoodputOptions& options);
// Return SVGs for --picture: of the memory of a GPU; and, with --schedule, of the list's tasks or of the passes of all pipeline
// stages.
std::string memory_picture(const PlannedRun& run);
std::string schedule_picture(const PlannedRun& run);
// Returns full plans, best first, for at most ten of the `found` layouts that fit.
std::string search_text(const std::vector<PlannedRun>& best, std::size_t found, const std::string& why);
std::string search_json(const std::vector<PlannedRun>& best, std::size_t found, const std::string& why);

}  // namespace octet::app
