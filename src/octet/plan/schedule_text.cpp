#include "octet/plan/schedule_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "octet/base/require.h"
#include "octet/parallel/names.h"
#include "octet/plan/schedule_gaps.h"

namespace octet::plan {

using parallel::Kind;
using parallel::Message;
using parallel::name_of_piece;
using parallel::name_of_unit;
using parallel::name_of_units;
using parallel::Part;
using parallel::StepShape;
using parallel::StreamId;
using parallel::Task;
using parallel::TimedTask;

namespace {

// A task of a list before this one.
std::string earlier_name(const StepShape& s, const Task::Wait& wait) {
  constexpr std::array kDone = {"gathered", "opened", "closed", "reduced", "received", "taken", "given", "sent"};
  if (wait.kind > Kind::send) return concat("states' slot ", wait.number, " offloaded before");
  const std::string of = wait.kind <= Kind::reduce ? name_of_unit(s, wait.number) : "messages";
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
    return concat(name, " ", name_of_unit(s, task.index), all ? "" : task.rowwise ? " rowwise" : " columnwise");
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
  if (task.kind == Kind::load && s.stages.chunks > 1) return concat(name, of, " chunk ", task.index);
  if (task.kind < Kind::embed_backward) return name + of;
  if (task.kind == Kind::sums) return name + " over ranks";
  if (task.kind == Kind::scales) return name;
  const bool of_piece = task.kind == Kind::fetch || task.kind == Kind::offload || (task.kind == Kind::update && task.part >= 0);
  return concat(name, task.kind == Kind::squares ? " of " : " ",
                of_piece ? name_of_piece(s, task.part) : name_of_units(s, task.units));
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

std::string exchanges_of(const TimedTask& timed) {
  char text[64] = "";
  if (timed.tensor_s > 0) std::snprintf(text, sizeof text, "exchanges %.3f ms over the tensor axis", 1e3 * timed.tensor_s);
  return text;
}

std::string text_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t begin) {
  std::string text;
  const std::vector<Gap> gaps = gaps_of(s, tasks);
  auto gap = gaps.begin();
  while (gap != gaps.end() && gap->begin < begin) ++gap;
  for (std::size_t i = begin; i < tasks.size();) {
    if (gap != gaps.end() && gap->begin == i) {
      text += concat("  ... ", gap->end - i == 1 ? concat("line ", i) : concat("lines ", i, " to ", gap->end - 1), ": ", gap->of,
                     " alike\n");
      i = (gap++)->end;
      continue;
    }
    char line[64];
    std::snprintf(line, sizeof line, "%5zu %10.3f %10.3f  %-13s ", i, 1e3 * tasks[i].begin, 1e3 * tasks[i].end,
                  name_of(tasks[i].task.stream).data());
    const std::string exchanges = exchanges_of(tasks[i]), waits = waits_of(s, tasks, i);
    text += line + name_of(s, tasks[i].task) + (exchanges.empty() ? "" : "  " + exchanges) +
            (waits.empty() ? "" : "  waits for " + waits) + "\n";
    ++i;
  }
  return text;
}

}  // namespace octet::plan
