#include "octet/parallel/schedule.h"

#include <algorithm>
#include <cstdio>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

int slots_in(const std::vector<int>& slot_of_unit) {
  return slot_of_unit.empty() ? 0 : 1 + *std::max_element(slot_of_unit.begin(), slot_of_unit.end());
}

}  // namespace

Slots::Slots(const StepShape& shape)
    : weights(at(slots_in(shape.weight_slot))),
      gradient_user(at(slots_in(shape.gradient_slot)), -1),
      fresh(shape.weight_slot.size(), 1) {}

void ScheduleBuilder::gather(Need need, bool here) {
  if (!s_.sharded || need.unit < 0 || need.use == Use::gradients) return;
  Slots::Weights& slot = slots_.weights[at(s_.weight_slot[at(need.unit)])];
  const bool there = slot.unit == need.unit, one_copy = !s_.two_copies[at(need.unit)];
  const bool rowwise = (one_copy || reads_forward(need.use)) && !(there && slot.rowwise);
  const bool columnwise = (one_copy || reads_backward(need.use)) && !(there && slot.columnwise);
  if ((!rowwise && !columnwise) || (slot.open && !there)) return;
  tasks_.push_back({.kind = Kind::gather,
                    .stream = StreamId::params,
                    .index = need.unit,
                    .values = !there || !(slot.rowwise || slot.columnwise),
                    .rowwise = rowwise,
                    .columnwise = columnwise,
                    .here = here,
                    .waits = {{{Signal::closed, slot.closed}}},
                    .signals = Signal::gathered});
  slot.rowwise = rowwise || (there && slot.rowwise);
  slot.columnwise = columnwise || (there && slot.columnwise);
  slot.unit = need.unit;
}

void ScheduleBuilder::open(Need need) {
  if (!s_.sharded) return;
  Task task{.kind = Kind::open, .index = need.unit, .use = need.use};
  if (need.use != Use::gradients) {
    gather(need);
    Slots::Weights& slot = slots_.weights[at(s_.weight_slot[at(need.unit)])];
    require(slot.unit == need.unit, "unit ", need.unit, " cannot be used beside unit ", slot.unit);
    slot.open = true;
    task.waits[0] = {Signal::gathered, need.unit};
  }
  if (writes_gradients(need.use) && s_.sharded_gradients) {
    const int slot = s_.gradient_slot[at(need.unit)];
    if (slots_.pending >= 0 && s_.gradient_slot[at(slots_.pending)] == slot) reduce_pending();
    task.waits[1] = {Signal::reduced, slots_.gradient_user[at(slot)]};
  }
  tasks_.push_back(task);
}

void ScheduleBuilder::close(Need need) {
  const bool reduces = writes_gradients(need.use) && s_.reduced && (last_ || s_.sharded_gradients);
  if (writes_gradients(need.use)) reduce_pending();
  tasks_.push_back({.kind = Kind::close, .index = need.unit, .use = need.use, .last = last_, .signals = Signal::closed});
  if (reduces) slots_.pending = need.unit;
  if (!s_.sharded || need.use == Use::gradients) return;
  Slots::Weights& slot = slots_.weights[at(s_.weight_slot[at(need.unit)])];
  slot.open = false;
  if (s_.resharded) slot.closed = need.unit;
}

void ScheduleBuilder::reduce_pending(bool here) {
  const int unit = std::exchange(slots_.pending, -1);
  if (unit < 0) return;
  tasks_.push_back({.kind = Kind::reduce,
                    .stream = StreamId::params,
                    .index = unit,
                    .first = std::exchange(slots_.fresh[at(unit)], char{0}) != 0,
                    .last = last_,
                    .here = here,
                    .waits = {{{here ? Signal::none : Signal::closed, unit}}},
                    .signals = Signal::reduced});
  if (s_.sharded_gradients) slots_.gradient_user[at(s_.gradient_slot[at(unit)])] = unit;
}

void ScheduleBuilder::add_parts(Kind kind, int block, Need next) {
  const std::vector<Part>& parts = kind == Kind::forward ? s_.forward_parts : s_.backward_parts;
  const int count = static_cast<int>(parts.size());
  for (int part = 0; part < count; ++part) {
    if (parts[at(part)].beside == Beside::gather) gather(next, true);
    if (parts[at(part)].beside == Beside::reduce) reduce_pending(true);
    tasks_.push_back({.kind = kind, .index = block, .part = part, .first = part == 0, .last = part + 1 == count});
  }
}

namespace {

// The embedding and the blocks, forward; then `head` is gathered.
void add_forward(const StepShape& s, ScheduleBuilder& b, Need head) {
  const auto block = [&](int i) { return i < s.blocks ? Need{s.first_block + i} : head; };
  // A part beside which units may be gathered comes behind the exchange of keys, which uses the same links.
  const bool beside =
      std::any_of(s.forward_parts.begin(), s.forward_parts.end(), [](const Part& part) { return part.beside == Beside::gather; });
  const Need embedding{s.embedding};
  b.open(embedding);
  b.gather(block(0));
  b.add(Kind::embed);
  b.close(embedding);
  for (int i = 0; i < s.blocks; ++i) {
    b.open(block(i));
    if (!beside) b.gather(block(i + 1));
    b.add_parts(Kind::forward, i, block(i + 1));
    b.close(block(i));
  }
}

}  // namespace

std::vector<Task> build_micro_batch(const StepShape& s, Slots& slots, bool last) {
  ScheduleBuilder b(s, slots, last);
  const Use use = s.full_recompute ? Use::both : Use::backward;
  const Need head{s.head, Use::both}, again = last ? Need{} : Need{s.embedding};
  const bool tied = s.head == s.embedding;
  const auto block = [&](int i) { return i >= 0 ? Need{s.first_block + i, use} : again; };
  add_forward(s, b, head);

  b.open(head);
  b.gather(block(s.blocks - 1));
  b.add(Kind::head);
  if (!tied) b.close(head);  // a tied head begins a gradient that the embedding completes
  for (int i = s.blocks; i-- > 0;) {
    b.open(block(i));
    b.gather(block(i - 1));
    if (s.full_recompute) b.add(Kind::recompute, i);
    b.add_parts(Kind::backward, i, {});
    b.close(block(i));
  }
  const Need embedding{s.embedding, Use::gradients};
  if (!tied) b.open(embedding);
  b.add(Kind::embed_backward);
  b.close(tied ? head : embedding);
  b.reduce_pending(true);
  return b.take();
}

std::vector<Task> build_evaluation(const StepShape& s, Slots& slots) {
  StepShape forward = s;
  for (Part& part : forward.forward_parts) part.beside = Beside::nothing;
  ScheduleBuilder b(forward, slots, false);
  const Need head{s.head};
  add_forward(forward, b, head);
  b.open(head);
  b.add(Kind::head);
  b.close(head);
  return b.take();
}

namespace {

constexpr int kShown = 2;  // blocks at either end of a long model

std::string unit_name(const StepShape& s, int unit) {
  if (unit == s.embedding) return s.head == s.embedding ? "embedding and head" : "embedding";
  return unit == s.head ? "head" : concat("block ", unit - s.first_block);
}

std::string what(const StepShape& s, const Task& task) {
  const std::string unit = unit_name(s, task.index), block = concat("block ", task.index);
  switch (task.kind) {
    case Kind::gather:
      return "gather " + unit + (task.rowwise && task.columnwise ? "" : task.rowwise ? ", rowwise" : ", columnwise");
    case Kind::open:
      return "open " + unit;
    case Kind::close:
      return "close " + unit;
    case Kind::reduce:
      return "reduce " + unit;
    case Kind::embed:
      return "embed";
    case Kind::forward:
      return concat(block, " forward: ", s.forward_parts[at(task.part)].name);
    case Kind::recompute:
      return block + " recompute";
    case Kind::head:
      return "head: loss and its gradient";
    case Kind::backward:
      return concat(block, " backward: ", s.backward_parts[at(task.part)].name);
    case Kind::embed_backward:
      return "embedding backward";
  }
  return {};
}

// The block of a task, or -1.
int block_of(const StepShape& s, const Task& task) {
  if (task.kind == Kind::forward || task.kind == Kind::recompute || task.kind == Kind::backward) return task.index;
  return task.kind <= Kind::reduce && task.index != s.embedding && task.index != s.head ? task.index - s.first_block : -1;
}

constexpr const char* kSignals[] = {"", "gathered", "closed", "reduced"};

std::string waits_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t i) {
  std::string text;
  if (tasks[i].task.here) text += " all of compute above";
  for (const Task::Wait& wait : tasks[i].task.waits) {
    if (wait.signal == Signal::none || wait.unit < 0) continue;
    std::size_t before = i;
    while (before > 0 && (tasks[before - 1].task.signals != wait.signal || tasks[before - 1].task.index != wait.unit)) --before;
    text += before > 0 ? concat(text.empty() ? " " : ", ", before - 1, " ", what(s, tasks[before - 1].task))
                       : concat(text.empty() ? " " : ", ", unit_name(s, wait.unit), ", ",
                                kSignals[static_cast<std::size_t>(wait.signal)], " before");
  }
  return text.empty() ? text : "  waits for" + text;
}

}  // namespace

std::string text_of(const StepShape& s, const std::vector<TimedTask>& tasks) {
  std::string text;
  bool left_out = false;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i].task;
    const int block = block_of(s, task);
    const bool shown = block < kShown || block >= s.blocks - kShown;
    if (!shown && !left_out) text += concat("    ... blocks ", kShown, " to ", s.blocks - kShown - 1, " alike\n");
    left_out = !shown;
    if (!shown) continue;
    char line[64];
    std::snprintf(line, sizeof line, "%5zu %10.3f %10.3f  %-8s ", i, 1e3 * tasks[i].begin, 1e3 * tasks[i].end,
                  task.stream == StreamId::params ? "params" : "compute");
    text += line + what(s, task) + waits_of(s, tasks, i) + "\n";
  }
  return text;
}

}  // namespace octet::parallel
