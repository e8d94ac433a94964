#include "octet/plan/schedule_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "octet/base/require.h"

namespace octet::plan {

using parallel::BlockRange;
using parallel::Kind;
using parallel::Message;
using parallel::Part;
using parallel::StepShape;
using parallel::StreamId;
using parallel::Task;
using parallel::TimedTask;

namespace {

constexpr int kShown = 2;  // blocks at either end of a long chunk

std::string unit_name(const StepShape& s, int unit) {
  if (unit == s.embedding) return s.head == s.embedding ? "embedding and head" : "embedding";
  return unit == s.head ? "head" : concat("block ", unit - s.first_block);
}

std::string range_name(const StepShape& s, parallel::UnitRange units) {
  return unit_name(s, units.begin) + (units.end - units.begin > 1 ? " to " + unit_name(s, units.end - 1) : "");
}

// A piece of the states, numbered within its unit.
std::string piece_name(const StepShape& s, int piece) {
  const int unit = s.pieces[static_cast<std::size_t>(piece)];
  const auto first = std::find(s.pieces.begin(), s.pieces.end(), unit) - s.pieces.begin();
  return concat(unit_name(s, unit), " states ", piece - static_cast<int>(first));
}

// The block of a task of a micro-batch, or -1.
int block_of(const StepShape& s, const Task& task) {
  if (is_part(task.kind)) return task.index;
  return task.kind <= Kind::reduce && task.index != s.embedding && task.index != s.head ? task.index - s.first_block : -1;
}

// A task of a list before this one.
std::string earlier_name(const StepShape& s, const Task::Wait& wait) {
  constexpr std::array kDone = {"gathered", "opened", "closed", "reduced", "received", "taken", "given", "sent"};
  if (wait.kind > Kind::send) return concat("states' slot ", wait.number, " offloaded before");
  const std::string of = wait.kind <= Kind::reduce ? unit_name(s, wait.number) : "messages";
  return concat(of, " ", kDone[static_cast<std::size_t>(wait.kind)], " before");
}

// The last task above number `i` that leaves the event of a wait.
std::optional<std::size_t> find_event(const std::vector<TimedTask>& tasks, std::size_t i, const Task::Wait& wait) {
  while (i-- > 0) {
    const Task& task = tasks[i].task;
    if (task.leaves_event && task.kind == wait.kind && task.event() == wait.number) return i;
  }
  return std::nullopt;
}

}  // namespace

std::string name_of(const StepShape& s, const Task& task) {
  constexpr std::array<const char*, 22> kNames = {
      "gather",    "open", "close",    "reduce",    "receive", "take", "give",   "send",   "load", "embed", "forward",
      "recompute", "head", "backward", "embedding", "squares", "sums", "scales", "update", "cast", "fetch", "offload"};
  const std::string name = kNames.at(static_cast<std::size_t>(task.kind));
  // With several stages or lanes, several micro-batches are in progress at the same time.
  const std::string of = s.stages.count > 1 || s.lanes > 1 ? concat(" m", task.micro_batch) : "";
  if (task.kind <= Kind::reduce) {
    const bool all = task.kind != Kind::gather || (task.rowwise && task.columnwise);
    return concat(name, " ", unit_name(s, task.index), all ? "" : task.rowwise ? " rowwise" : " columnwise");
  }
  if (task.kind <= Kind::send) {
    const bool of_one = task.kind == Kind::take || task.kind == Kind::give;
    return concat(name, task.index == static_cast<int>(Message::activations) ? " activations" : " gradients", of_one ? of : "");
  }
  if (is_part(task.kind)) {
    const Part& part = s.parts_of(task.kind, task.index)[static_cast<std::size_t>(task.part)];
    return concat("block ", task.index, of, " ", name, ": ", part.name);
  }
  if (task.kind == Kind::head) return name + of + ": loss and its gradient";
  if (task.kind == Kind::embed_backward) return name + " backward" + of;
  if (task.kind < Kind::embed_backward) return name + of;
  if (task.kind == Kind::sums) return name + " over ranks";
  if (task.kind == Kind::scales) return name;
  const bool of_piece = task.kind == Kind::fetch || task.kind == Kind::offload || (task.kind == Kind::update && task.part >= 0);
  return concat(name, task.kind == Kind::squares ? " of " : " ", of_piece ? piece_name(s, task.part) : range_name(s, task.units));
}

std::string_view name_of(StreamId stream) {
  constexpr std::array<std::string_view, parallel::kStreams> kNames = {"compute",  "communication", "pipeline", "pipeline",
                                                                       "pipeline", "pipeline",      "fetch",    "offload",
                                                                       "experts",  "context",       "tensor"};
  return kNames[static_cast<std::size_t>(stream)];
}

std::vector<std::size_t> waits_for(const std::vector<TimedTask>& tasks, std::size_t i) {
  std::vector<std::size_t> numbers;
  for (const Task::Wait& wait : tasks[i].task.waits) {
    if (const auto number = find_event(tasks, i, wait)) numbers.push_back(*number);
  }
  if (!tasks[i].task.after_compute) return numbers;
  std::size_t before = i;
  while (before > 0 && tasks[before - 1].task.stream != StreamId::compute) --before;
  if (before > 0) numbers.push_back(before - 1);
  return numbers;
}

std::string waits_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t i) {
  std::string text = tasks[i].task.after_compute ? "all of compute above" : "";
  for (const Task::Wait& wait : tasks[i].task.waits) {
    const auto number = find_event(tasks, i, wait);
    if (!text.empty()) text += ", ";
    text += number ? concat(*number, " ", name_of(s, tasks[*number].task)) : earlier_name(s, wait);
  }
  return text;
}

std::string left_out(const StepShape& s, const Task& task) {
  const auto in_the_middle = [](int i, BlockRange of) { return of.begin + kShown <= i && i < of.end - kShown; };
  const bool of_piece = task.kind == Kind::update || task.kind == Kind::fetch || task.kind == Kind::offload;
  if (of_piece) return in_the_middle(task.part, {0, static_cast<int>(s.pieces.size())}) ? "pieces" : "";
  const int block = block_of(s, task);
  if (block < 0) return "";
  int chunk = 0;
  while (blocks_of(s.blocks, s.stages, chunk).end <= block) ++chunk;
  const BlockRange blocks = blocks_of(s.blocks, s.stages, chunk);
  return in_the_middle(block, blocks) ? concat("blocks ", blocks.begin + kShown, " to ", blocks.end - kShown - 1) : "";
}

std::string text_of(const StepShape& s, const std::vector<TimedTask>& tasks) {
  std::string text, said;  // what the computation has left out since one of its tasks was shown
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i].task;
    const std::string middle = left_out(s, task);
    if (task.stream == StreamId::compute && middle != said) {
      if (!middle.empty()) text += "    ... " + middle + " alike\n";
      said = middle;
    }
    if (!middle.empty()) continue;
    char line[64];
    std::snprintf(line, sizeof line, "%5zu %10.3f %10.3f  %-13s ", i, 1e3 * tasks[i].begin, 1e3 * tasks[i].end,
                  name_of(task.stream).data());
    const std::string waits = waits_of(s, tasks, i);
    text += line + name_of(s, task) + (waits.empty() ? "" : "  waits for " + waits) + "\n";
  }
  return text;
}

}  // namespace octet::plan
