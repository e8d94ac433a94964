#include "octet/plan/schedule_gaps.h"

#include <algorithm>
#include <array>
#include <map>

#include "octet/base/require.h"
#include "octet/parallel/names.h"

namespace octet::plan {

using parallel::BlockRange;
using parallel::Kind;
using parallel::Message;
using parallel::StepShape;
using parallel::StreamId;
using parallel::Task;
using parallel::TimedTask;
using parallel::Visit;

namespace {

constexpr int kShown = 2;  // at either end

bool in_the_middle(int i, BlockRange of) { return of.begin + kShown <= i && i < of.end - kShown; }

std::string range_text(const std::string& one, const std::string& first, const std::string& last) {
  return first == last ? concat(one, first) : concat(one, first, " to ", last);
}

// A pass of a list, or of several micro-batches that take turns, and the number of its first task.
struct Pass {
  std::size_t begin = 0;
  Visit visit;
};

std::vector<Pass> passes_of(const StepShape& s, const std::vector<TimedTask>& tasks) {
  std::vector<Pass> passes;
  std::map<int, int> chunk_of_flight;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i].task;
    const bool forward = task.kind == Kind::load;
    const bool gradients = task.kind == Kind::take && task.index == static_cast<int>(Message::gradients);
    if (!forward && !gradients && task.kind != Kind::head) continue;
    if (forward) chunk_of_flight[task.flight] = task.index;
    const Visit visit{.backward = !forward, .micro_batch = task.micro_batch, .chunk = chunk_of_flight[task.flight]};
    if (s.lanes > 1 && !passes.empty() && passes.back().visit.backward == visit.backward) continue;  // another lane of this pass
    std::size_t begin = i;
    const auto prepares = [](Kind kind) { return kind == Kind::gather || kind == Kind::open || kind == Kind::receive; };
    while (!forward && begin > 0 && prepares(tasks[begin - 1].task.kind)) --begin;
    passes.push_back({begin, visit});
  }
  return passes;
}

// The place of a task among the tasks of its pass. Only tasks in the middle are left out.
enum class InList : std::uint8_t { middle, edge, beside };  // beside: it goes with the tasks around it

InList in_list_of(const StepShape& s, const Task& task) {
  if (task.kind == Kind::update && task.part >= 0) {
    return in_the_middle(task.part, {0, static_cast<int>(s.pieces.size())}) ? InList::middle : InList::edge;
  }
  constexpr std::array kBeside = {Kind::gather, Kind::reduce, Kind::receive, Kind::send, Kind::fetch, Kind::offload};
  if (std::find(kBeside.begin(), kBeside.end(), task.kind) != kBeside.end()) return InList::beside;
  const bool of_unit = task.kind == Kind::open || task.kind == Kind::close;
  if (!is_part(task.kind) && (!of_unit || task.index == s.embedding || task.index == s.head)) return InList::edge;
  const int block = of_unit ? task.index - s.first_block : task.index;
  int chunk = 0;
  while (blocks_of(s.blocks, s.stages, chunk).end <= block) ++chunk;
  return in_the_middle(block, blocks_of(s.blocks, s.stages, chunk)) ? InList::middle : InList::edge;
}

std::string text_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t begin, std::size_t end) {
  if (tasks[begin].task.kind == Kind::update) {
    return range_text("", name_of_piece(s, tasks[begin].task.part), name_of_piece(s, tasks[end - 1].task.part));
  }
  int first = s.blocks, last = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (!is_part(tasks[i].task.kind)) continue;
    first = std::min(first, tasks[i].task.index);
    last = std::max(last, tasks[i].task.index);
  }
  return range_text(first == last ? "block " : "blocks ", concat(first), concat(last));
}

// The runs of tasks in the middle among the tasks [begin, end).
std::vector<Gap> runs_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t begin, std::size_t end) {
  std::vector<Gap> runs;
  bool open = false;
  for (std::size_t i = begin; i < end; ++i) {
    const InList where = in_list_of(s, tasks[i].task);
    if (where == InList::beside) continue;
    if (where == InList::middle && !open) runs.push_back({.begin = i, .end = i, .of = {}});
    open = where == InList::middle;
    if (open) runs.back().end = i + 1;
  }
  for (Gap& run : runs) run.of = text_of(s, tasks, run.begin, run.end);
  return runs;
}

}  // namespace

std::vector<Gap> gaps_of(const std::vector<Visit>& passes) {
  int micro_batches = 0, chunks = 0;
  for (const Visit& visit : passes) {
    micro_batches = std::max(micro_batches, visit.micro_batch + 1);
    chunks = std::max(chunks, visit.chunk + 1);
  }
  std::vector<Gap> gaps;
  for (std::size_t i = 0; i < passes.size();) {
    std::size_t end = i;
    std::array<std::pair<int, int>, 2> of = {{{micro_batches, -1}, {micro_batches, -1}}};  // forward and backward: first and last
    for (; end < passes.size() && in_the_middle(passes[end].micro_batch, {0, micro_batches}); ++end) {
      auto& [first, last] = of[passes[end].backward ? 1 : 0];
      first = std::min(first, passes[end].micro_batch);
      last = std::max(last, passes[end].micro_batch);
    }
    if (end > i) {
      Gap gap{.begin = i, .end = end, .of = {}};
      for (const bool backward : {false, true}) {
        const auto [first, last] = of[backward ? 1 : 0];
        if (last < 0) continue;
        // With several chunks, a pass alone is named as in the list of passes.
        const std::string chunk = chunks > 1 && end - i == 1 ? concat(" chunk ", passes[i].chunk) : "";
        gap.of += (gap.of.empty() ? "" : ", ") +
                  range_text(backward ? "backward " : "forward ", concat("m", first), concat("m", last)) + chunk;
      }
      gaps.push_back(gap);
    }
    i = std::max(end, i + 1);
  }
  return gaps;
}

std::vector<Gap> gaps_of(const StepShape& s, const std::vector<TimedTask>& tasks) {
  const std::vector<Pass> passes = passes_of(s, tasks);
  if (passes.empty()) return runs_of(s, tasks, 0, tasks.size());  // the end of a step
  std::vector<Visit> visits;
  for (const Pass& pass : passes) visits.push_back(pass.visit);
  const auto begin_of = [&](std::size_t pass) { return pass < passes.size() ? passes[pass].begin : tasks.size(); };
  std::vector<Gap> gaps;
  if (s.stages.count > 1) gaps = gaps_of(visits);
  const std::vector<Gap> whole = gaps;
  for (Gap& gap : gaps) {
    gap.begin = begin_of(gap.begin);
    gap.end = begin_of(gap.end);
  }
  for (std::size_t pass = 0; pass < passes.size(); ++pass) {
    const auto is_whole = [&](const Gap& gap) { return gap.begin <= pass && pass < gap.end; };
    if (std::any_of(whole.begin(), whole.end(), is_whole)) continue;
    // Where lanes take turns, a few tasks of blocks in the middle stand between those of other blocks; they are shown.
    const std::vector<Gap> runs = runs_of(s, tasks, begin_of(pass), begin_of(pass + 1));
    const auto longest =
        std::max_element(runs.begin(), runs.end(), [](const Gap& a, const Gap& b) { return a.end - a.begin < b.end - b.begin; });
    if (longest != runs.end()) gaps.push_back(*longest);
  }
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.begin < b.begin; });
  return gaps;
}

// The computation's tasks run one after another.
double begin_of(const std::vector<TimedTask>& tasks, const Gap& gap) {
  std::size_t i = gap.begin;
  while (i + 1 < gap.end && tasks[i].task.stream != StreamId::compute) ++i;
  return tasks[i].begin;
}

double end_of(const std::vector<TimedTask>& tasks, const Gap& gap) {
  std::size_t i = gap.end - 1;
  while (i > gap.begin && tasks[i].task.stream != StreamId::compute) --i;
  return tasks[i].end;
}

std::size_t begin_of_backward(const StepShape& s, const std::vector<TimedTask>& tasks) {
  for (const Pass& pass : passes_of(s, tasks)) {
    if (pass.visit.backward) return pass.begin;
  }
  return tasks.size();
}

}  // namespace octet::plan
