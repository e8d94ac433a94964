// The memory and the schedule of a planned run as pictures.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "octet/app/plan.h"
#include "octet/plan/schedule_gaps.h"
#include "octet/plan/schedule_text.h"
#include "octet/report/lanes.h"
#include "octet/report/memory_bar.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

// By category.
constexpr std::array<const char*, kDeviceCategories> kNotes = {
    "what products and norms read: FP8 codes, BF16 values",
    "FP32 values that the optimizer updates",
    "AdamW's first and second moments",
    "sums over the micro-batches of a step",
    "kept from forward to backward",
    "temporaries of an op or a block",
    "scales, histories, tables",
};

}  // namespace

std::string memory_picture(const PlannedRun& run) {
  report::MemoryBar bar{.title = run.run,
                        .lines = {fmt::format("{} on {} {}; {}", run.recipe, run.cluster.gpus, run.cluster.gpu.name,
                                              plan::mesh_text(run.layout.mesh)),
                                  fmt::format("{}; micro-batches of {} x {} tokens", plan::keeps_text(run.layout),
                                              run.layout.micro_batch, run.seq_len)},
                        .parts = {},
                        .gpu = run.cluster.gpu.name,
                        .gpu_bytes = run.cluster.gpu.memory_bytes};
  for (std::size_t i = 0; i < kDeviceCategories; ++i) {
    bar.parts.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), kNotes[i], run.memory.bytes[i]});
  }
  bar.parts.push_back({"CUDA", "its context and libraries", run.overhead.context});
  bar.parts.push_back({"NCCL", "buffers of communicators, an estimate", run.overhead.nccl});
  return report::draw(bar);
}

namespace {

using parallel::Kind;
using parallel::StepShape;
using parallel::StreamId;
using parallel::Task;
using parallel::TimedTask;
using report::Lane;
using report::Lanes;
using report::Tint;

constexpr double kAtOnce = 1e-4;  // a task that begins within these seconds after another one began because that one had ended

Tint tint_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
    case Kind::recompute:
      return Tint::forward;
    case Kind::backward:
      return Tint::backward;
    case Kind::gather:
      return Tint::gather;
    case Kind::reduce:
      return Tint::reduce;
    default:
      return Tint::other;
  }
}

// Returns the short label of a task, for a box whose colour says the rest: "attention" for "block 2 forward: attention", "block
// 2" for "gather block 2 rowwise".
std::string label_of(const StepShape& shape, const Task& task) {
  const std::string name = plan::name_of(shape, task);
  if (task.kind == Kind::forward || task.kind == Kind::backward) return name.substr(name.find(": ") + 2);
  std::string head = name.substr(0, name.find(": "));
  if (task.kind == Kind::gather && !(task.rowwise && task.columnwise)) head.resize(head.rfind(' '));
  return task.kind == Kind::gather || task.kind == Kind::reduce ? head.substr(head.find(' ') + 1) : head;
}

std::string times_text(double begin, double end) { return fmt::format("{:.3f} to {:.3f} ms", 1e3 * begin, 1e3 * end); }

Lanes lanes_of_list(const StepShape& shape, const std::vector<TimedTask>& tasks) {
  Lanes lanes;
  std::map<StreamId, std::size_t> lane_of;
  for (const TimedTask& timed : tasks) {
    if (lane_of.emplace(timed.task.stream, lanes.lanes.size()).second)
      lanes.lanes.push_back({.name = std::string(plan::name_of(timed.task.stream)), .note = "", .boxes = {}, .groups = {}});
  }
  const std::vector<plan::Gap> gaps = plan::gaps_of(shape, tasks);
  const auto is_left_out = [&](std::size_t i) {
    return std::any_of(gaps.begin(), gaps.end(), [&](const plan::Gap& gap) { return gap.begin <= i && i < gap.end; });
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (is_left_out(i)) continue;
    const auto& [task, begin, end] = tasks[i];
    const std::size_t number = lane_of.at(task.stream);
    const std::string name = plan::name_of(shape, task), waits = plan::waits_of(shape, tasks, i);
    Lane& lane = lanes.lanes[number];
    lane.boxes.push_back(
        {.label = label_of(shape, task),
         .tip = fmt::format("{} {}: {}{}", i, name, times_text(begin, end), waits.empty() ? "" : "; waits for " + waits),
         .tint = tint_of(task.kind),
         .begin = begin,
         .end = end});
    for (const std::size_t before : plan::waits_for(tasks, i)) {
      const TimedTask& of = tasks[before];
      if (is_left_out(before) || lane_of.at(of.task.stream) == number) continue;
      lanes.links.push_back({.from = lane_of.at(of.task.stream),
                             .to = number,
                             .from_s = of.end,
                             .to_s = begin,
                             .held_up = begin - of.end < kAtOnce});
    }
    if (task.kind != Kind::forward && task.kind != Kind::backward) continue;
    // Where two lanes of a step take turns, each turn of a block has a bracket.
    const std::string pass = name.substr(0, name.find(": "));
    if (lane.groups.empty() || lane.groups.back().label != pass)
      lane.groups.push_back({.label = pass, .tip = pass, .tint = Tint::other, .begin = begin, .end = end});
    lane.groups.back().end = end;
  }
  for (const plan::Gap& gap : gaps) lanes.cuts.push_back({plan::begin_of(tasks, gap), plan::end_of(tasks, gap), gap.of});
  lanes.legend = {{Tint::forward, "forward"},
                  {Tint::backward, "backward"},
                  {Tint::other, "embedding, head"},
                  {Tint::gather, "gather weights"},
                  {Tint::reduce, "reduce gradients"}};
  return lanes;
}

// A link is drawn where a stage had nothing to do until the message came.
void link_messages(Lanes& lanes, const std::vector<std::vector<plan::TimedPass>>& passes, int chunks) {
  const int stages = static_cast<int>(passes.size());
  const auto find = [&](int chunk, const parallel::Visit& visit) -> const plan::TimedPass& {
    const auto& of = passes[static_cast<std::size_t>(chunk % stages)];
    return *std::find_if(of.begin(), of.end(), [&](const plan::TimedPass& pass) {
      return pass.visit == parallel::Visit{visit.backward, visit.micro_batch, chunk / stages};
    });
  };
  for (int stage = 0; stage < stages; ++stage) {
    double free = 0;
    for (const plan::TimedPass& pass : passes[static_cast<std::size_t>(stage)]) {
      const int from = pass.visit.chunk * stages + stage + (pass.visit.backward ? 1 : -1);
      if (pass.begin > free && from >= 0 && from < stages * chunks) {
        lanes.links.push_back({.from = static_cast<std::size_t>(from % stages),
                               .to = static_cast<std::size_t>(stage),
                               .from_s = find(from, pass.visit).end,
                               .to_s = pass.begin});
      }
      free = pass.end;
    }
  }
}

// Leaves the middle of a long step out of the picture. At either end it keeps as many passes as three micro-batches make on all
// stages.
void cut_steady_part(Lanes& lanes, const std::vector<std::vector<plan::TimedPass>>& passes, int chunks) {
  const std::size_t shown = 3 * passes.size() * static_cast<std::size_t>(chunks);
  if (passes.front().size() <= 3 * shown) return;
  report::LaneCut cut{.begin = 0, .end = passes.front().back().end, .label = "alike"};
  for (const auto& of : passes) {
    cut.begin = std::max(cut.begin, of[shown].end);
    cut.end = std::min(cut.end, of[of.size() - shown].begin);
  }
  if (cut.begin < cut.end) lanes.cuts.push_back(cut);
}

Lanes lanes_of_stages(const PlannedRun& run) {
  Lanes lanes;
  const int chunks = run.layout.mesh.stages().chunks;
  cut_steady_part(lanes, run.passes, chunks);
  const auto is_cut = [&](double from, double to) {
    return !lanes.cuts.empty() && lanes.cuts.front().begin <= from && to <= lanes.cuts.front().end;
  };
  double end = 0;
  for (const auto& passes : run.passes) end = std::max(end, passes.back().end);
  for (std::size_t stage = 0; stage < run.passes.size(); ++stage) {
    Lane lane{.name = fmt::format("stage {}", stage), .note = "", .boxes = {}, .groups = {}};
    double idle = end;
    for (const auto& [visit, from, to] : run.passes[stage]) {
      const Tint tint = visit.chunk % 2 == 0 ? (visit.backward ? Tint::backward : Tint::forward)
                                             : (visit.backward ? Tint::backward_again : Tint::forward_again);
      idle -= to - from;
      if (is_cut(from, to)) continue;
      lane.boxes.push_back({.label = fmt::format("{}", visit.micro_batch),
                            .tip = fmt::format("stage {} {}: {}", stage, pass_text(visit, chunks), times_text(from, to)),
                            .tint = tint,
                            .begin = from,
                            .end = to});
    }
    lane.note = fmt::format("idle {}", telemetry::format_share(idle / end));
    lanes.lanes.push_back(std::move(lane));
  }
  link_messages(lanes, run.passes, chunks);
  lanes.legend = {{Tint::forward, "forward, with the number of the micro-batch"}, {Tint::backward, "backward"}};
  if (chunks > 1) {
    lanes.legend = {{Tint::forward, "forward, with the number of the micro-batch"},
                    {Tint::forward_again, "forward, chunks of odd numbers"},
                    {Tint::backward, "backward"},
                    {Tint::backward_again, "backward, chunks of odd numbers"}};
  }
  return lanes;
}

}  // namespace

std::string schedule_picture(const PlannedRun& run) {
  const bool stages = !run.passes.empty();
  Lanes lanes = stages ? lanes_of_stages(run) : lanes_of_list(run.shape, run.tasks);
  lanes.title = fmt::format("{}: {}; predicted, not measured", run.run,
                            stages ? "the passes of a step on all pipeline stages" : "the first micro-batch, task by task");
  lanes.lines = {fmt::format("{} on {}; {}", run.recipe, cluster_text(run.cluster), plan::mesh_text(run.layout.mesh)),
                 fmt::format("{}; {} of {} x {} tokens in a step", plan::keeps_text(run.layout),
                             telemetry::format_count(run.micro_batches, "micro-batch"), run.layout.micro_batch, run.seq_len)};
  if (!stages) lanes.lines.push_back("Arrows lead from a task to one that waits for it. A pale arrow cost no time.");
  return report::draw(lanes);
}

}  // namespace octet::app
