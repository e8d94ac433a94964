#include "octet/parallel/schedule.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Marks a flight that is free.
constexpr Visit kNoVisit{.backward = false, .micro_batch = -1, .chunk = -1};

int slots_in(const std::vector<int>& slot_of_unit) {
  return slot_of_unit.empty() ? 0 : 1 + *std::max_element(slot_of_unit.begin(), slot_of_unit.end());
}

}  // namespace

Slots::Slots(const StepShape& shape)
    : weights(at(slots_in(shape.weight_slot))),
      gradient_user(at(slots_in(shape.gradient_slot)), -1),
      offloaded(at(shape.state_slots), 0) {}

const std::vector<Part>& StepShape::parts_of(Kind kind) const {
  static const std::vector<Part> kNone;
  if (kind == Kind::forward || kind == Kind::recompute) return forward_parts;
  return kind == Kind::backward ? backward_parts : kNone;
}

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
  tasks_.push_back({.kind = Kind::close,
                    .index = need.unit,
                    .use = need.use,
                    .last = last_,
                    .signals = s_.reduced ? Signal::closed : Signal::none});
  if (reduces) slots_.pending = need.unit;
  if (!s_.sharded || need.use == Use::gradients) return;
  Slots::Weights& slot = slots_.weights[at(s_.weight_slot[at(need.unit)])];
  slot.open = false;
  if (s_.resharded) slot.closed = need.unit;
}

void ScheduleBuilder::reduce_pending(bool here) {
  const int unit = std::exchange(slots_.pending, -1);
  if (unit < 0) return;
  const bool first = std::erase(slots_.reduced, unit) == 0;
  slots_.reduced.push_back(unit);
  tasks_.push_back({.kind = Kind::reduce,
                    .stream = StreamId::params,
                    .index = unit,
                    .first = first,
                    .last = last_,
                    .here = here,
                    .waits = {{{here ? Signal::none : Signal::closed, unit}}},
                    .signals = Signal::reduced});
  if (s_.sharded_gradients) slots_.gradient_user[at(s_.gradient_slot[at(unit)])] = unit;
}

void ScheduleBuilder::add_part(Kind kind, int block, int part, Need next) {
  const std::vector<Part>& parts = s_.parts_of(kind);
  const int count = static_cast<int>(parts.size());
  if (parts[at(part)].beside == Beside::gather) gather(next, true);
  if (parts[at(part)].beside == Beside::reduce) reduce_pending(true);
  add(kind, block);
  Task& task = tasks_.back();
  task.stream = parts[at(part)].stream;
  task.part = part;
  task.first = part == 0;
  task.last = part + 1 == count;
  // The lane goes on to another stream and back.
  const bool computes = task.stream == StreamId::compute;
  const auto changes = [&](int other) { return other >= 0 && other < count && parts[at(other)].stream != task.stream; };
  if (changes(part - 1)) task.waits[0] = {computes ? Signal::exchanged : Signal::computed, lane_.flight};
  if (changes(part + 1)) task.signals = computes ? Signal::computed : Signal::exchanged;
}

void ScheduleBuilder::take(Message message) {
  const auto m = static_cast<std::size_t>(message);
  tasks_.push_back({.kind = Kind::receive,
                    .stream = message == Message::activations ? StreamId::receive_activations : StreamId::receive_gradients,
                    .index = static_cast<int>(m),
                    .signals = Signal::received});
  if (std::exchange(slots_.taken[m], true)) tasks_.back().waits[0] = {Signal::taken, static_cast<int>(m)};
  add(Kind::take, static_cast<int>(m));
  tasks_.back().waits[0] = {Signal::received, static_cast<int>(m)};
  tasks_.back().signals = Signal::taken;
}

void ScheduleBuilder::send(Message message) {
  const auto m = static_cast<std::size_t>(message);
  add(Kind::give, static_cast<int>(m));
  if (std::exchange(slots_.sent[m], true)) tasks_.back().waits[0] = {Signal::sent, static_cast<int>(m)};
  tasks_.back().signals = Signal::given;
  tasks_.push_back({.kind = Kind::send,
                    .stream = message == Message::activations ? StreamId::send_activations : StreamId::send_gradients,
                    .index = static_cast<int>(m),
                    .waits = {{{Signal::given, static_cast<int>(m)}}},
                    .signals = Signal::sent});
}

// Reductions follow each other on one stream, so the last one of these units ends after the others.
void ScheduleBuilder::add_squares(UnitRange units) {
  const auto last = std::find_if(slots_.reduced.rbegin(), slots_.reduced.rend(), [&](int unit) { return units.contains(unit); });
  tasks_.push_back({.kind = Kind::squares, .units = units});
  if (last != slots_.reduced.rend()) tasks_.back().waits[0] = {Signal::reduced, *last};
}

void ScheduleBuilder::add_sums() {
  tasks_.push_back({.kind = Kind::sums, .stream = s_.reduced ? StreamId::params : StreamId::compute, .here = s_.reduced});
  if (s_.reduced) tasks_.back().signals = Signal::summed;
  tasks_.push_back({.kind = Kind::scales});
  if (s_.reduced) tasks_.back().waits[0] = {Signal::summed, 0};
}

void ScheduleBuilder::fetch(int piece) {
  const int slot = piece % s_.state_slots;
  tasks_.push_back({.kind = Kind::fetch, .stream = StreamId::fetch, .index = slot, .part = piece, .signals = Signal::fetched});
  if (slots_.offloaded[at(slot)]) tasks_.back().waits[0] = {Signal::offloaded, slot};
}

void ScheduleBuilder::update(UnitRange units) {
  if (s_.pieces.empty()) return tasks_.push_back({.kind = Kind::update, .part = -1, .units = units});
  const int count = static_cast<int>(s_.pieces.size());
  for (int piece = 0; piece < count; ++piece) {
    if (!units.contains(s_.pieces[at(piece)])) continue;
    const int slot = piece % s_.state_slots;
    const Task::Wait fetched{Signal::fetched, slot}, updated{Signal::updated, slot};
    tasks_.push_back({.kind = Kind::update, .index = slot, .part = piece, .waits = {{fetched}}, .signals = Signal::updated});
    tasks_.push_back({.kind = Kind::offload,
                      .stream = StreamId::offload,
                      .index = slot,
                      .part = piece,
                      .waits = {{updated}},
                      .signals = Signal::offloaded});
    slots_.offloaded[at(slot)] = 1;
    if (piece + s_.state_slots < count) fetch(piece + s_.state_slots);
  }
}

void ScheduleBuilder::cast(UnitRange units) {
  tasks_.push_back({.kind = Kind::cast,
                    .stream = s_.sharded ? StreamId::params : StreamId::compute,
                    .units = units,
                    .here = s_.sharded});
  for (Slots::Weights& slot : slots_.weights) {
    if (units.contains(slot.unit)) slot.rowwise = slot.columnwise = false;
  }
  for (int unit = s_.first.begin; unit < s_.first.end; ++unit) {
    if (units.contains(unit)) gather({unit, Use::forward});
  }
}

namespace {

// A pass of a stage through one of its chunks, and which ends of the model the chunk has.
struct ChunkPass {
  ChunkPass(const StepShape& s, const Visit& visit) : visit(visit), forward(!visit.backward) {
    const int chunk = visit.chunk * s.stages.count + s.stage;
    blocks = blocks_of(s.blocks, s.stages, chunk);
    has_embedding = chunk == 0;
    has_head = chunk + 1 == s.stages.count * s.stages.chunks;
  }
  // The message that it begins with, if any.
  std::optional<Message> takes() const {
    if (forward) return has_embedding ? std::nullopt : std::optional(Message::activations);
    return has_head ? std::nullopt : std::optional(Message::gradients);
  }
  // The units that it reads, in their order.
  std::vector<Need> needs(const StepShape& s, Use head) const {
    std::vector<Need> units;
    const Use use = forward ? Use::forward : s.full_recompute ? Use::both : Use::backward;
    if (forward && has_embedding) units.push_back({s.embedding});
    if (!forward && has_head) units.push_back({s.head, head});
    for (int i = blocks.begin; i < blocks.end; ++i) {
      units.push_back({s.first_block + (forward ? i : blocks.begin + blocks.end - 1 - i), use});
    }
    return units;
  }

  Visit visit;
  bool forward;
  BlockRange blocks;
  bool has_embedding, has_head;
};

// A task of a pass, and the unit that it uses: its place among those of the pass.
struct Step {
  Kind kind;
  std::size_t unit = 0;
  int part = 0;
  bool opens = false, closes = false;  // begins or ends the use of the unit
};

// `units`: those that the pass reads; the embedding's backward comes behind them.
std::vector<Step> steps_of(const StepShape& s, const ChunkPass& pass, std::size_t units) {
  std::vector<Step> steps;
  const auto add_parts = [&](Kind kind, std::size_t unit) {
    for (std::size_t part = 0; part < s.parts_of(kind).size(); ++part) steps.push_back({kind, unit, static_cast<int>(part)});
  };
  if (pass.forward) steps.push_back({Kind::load});
  if (pass.takes()) steps.push_back({Kind::take});
  for (std::size_t unit = 0; unit < units; ++unit) {
    const std::size_t first = steps.size();
    if (unit == 0 && pass.forward && pass.has_embedding) {
      steps.push_back({Kind::embed});
    } else if (unit == 0 && !pass.forward && pass.has_head) {
      steps.push_back({Kind::head});
    } else if (pass.forward) {
      add_parts(Kind::forward, unit);
    } else {
      if (s.full_recompute) add_parts(Kind::recompute, unit);
      add_parts(Kind::backward, unit);
    }
    steps[first].opens = steps.back().closes = true;
  }
  if (!pass.forward && pass.has_embedding) {
    const bool tied = s.head == s.embedding;  // a tied head begins a gradient that the embedding completes
    if (tied) steps[0].closes = false;
    steps.push_back({.kind = Kind::embed_backward, .unit = tied ? 0 : units, .opens = !tied, .closes = true});
  } else if (!pass.forward || !pass.has_head) {
    steps.push_back({Kind::give});
  }
  return steps;
}

// Returns where the turns of a pass end. A turn ends before an exchange of rows of experts: while they are under way, another
// lane computes.
std::vector<std::size_t> turns_of(const StepShape& s, const std::vector<Step>& steps) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::vector<Part>& parts = s.parts_of(steps[i].kind);
    if (!parts.empty() && parts[at(steps[i].part)].stream == StreamId::experts) ends.push_back(i);
  }
  ends.push_back(steps.size());
  return ends;
}

// Adds passes through a chunk, which take turns. The first one opens a unit, the last one closes it. `behind` is the unit that
// the next pass reads first.
void add_pass(const StepShape& s, ScheduleBuilder& b, const ChunkPass& pass, const std::vector<Lane>& lanes, Need behind) {
  std::vector<Need> needs = pass.needs(s, Use::both);
  const std::vector<Step> steps = steps_of(s, pass, needs.size());
  needs.push_back(behind);  // which is gathered here, but not opened
  const auto next = [&](std::size_t unit) { return unit + 1 < needs.size() ? needs[unit + 1] : Need{}; };
  const auto need = [&](const Step& step) {
    return step.unit + 1 < needs.size() ? needs[step.unit] : Need{s.embedding, Use::gradients};
  };
  // A part beside which units may be gathered comes behind the exchange of keys, which uses the same links.
  const bool beside = pass.forward && std::any_of(s.forward_parts.begin(), s.forward_parts.end(),
                                                  [](const Part& part) { return part.beside == Beside::gather; });
  const Message message = pass.forward ? Message::activations : Message::gradients;
  std::size_t newest = 0;  // of the units that are open
  const auto add = [&](const Step& step, bool first_lane, bool last_lane) {
    if (step.opens && first_lane) {
      b.open(need(step));
      if (!beside || need(step).unit == s.embedding) b.gather(next(step.unit));
      newest = step.unit;
    }
    if (step.kind == Kind::take) {
      b.take(message);
    } else if (step.kind == Kind::give) {
      b.send(message);
    } else if (s.parts_of(step.kind).empty()) {
      b.add(step.kind, step.kind == Kind::load ? pass.visit.chunk : 0);
    } else {
      b.add_part(step.kind, need(step).unit - s.first_block, step.part, step.kind == Kind::forward ? next(step.unit) : Need{});
    }
    if (!step.closes || !last_lane) return;
    b.close(need(step));
    if (newest > step.unit) b.gather(next(newest));  // whose slot has just become free
  };
  std::size_t begin = 0;
  for (const std::size_t end : turns_of(s, steps)) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      b.enter(lanes[lane]);
      for (std::size_t i = begin; i < end; ++i) add(steps[i], lane == 0, lane + 1 == lanes.size());
    }
    begin = end;
  }
  if (!pass.forward) b.reduce_pending(true);
}

}  // namespace

std::vector<Task> build_visits(const StepShape& s, Slots& slots, std::span<const Visit> visits, std::size_t begin,
                               std::size_t end, int micro_batches) {
  ScheduleBuilder b(s, slots, false);
  const auto behind = [&](std::size_t i) {
    const std::vector<Need> needs = i + 1 < visits.size() ? ChunkPass(s, visits[i + 1]).needs(s, Use::both) : std::vector<Need>{};
    return needs.empty() ? Need{} : needs.front();
  };
  for (std::size_t i = begin; i < end;) {
    const ChunkPass pass(s, visits[i]);
    std::vector<Lane> lanes;
    for (; i < end && lanes.size() < at(s.lanes) && visits[i].backward == pass.visit.backward; ++i) {
      const Visit owner{.backward = true, .micro_batch = visits[i].micro_batch, .chunk = visits[i].chunk};  // who ends the flight
      auto flight = std::find(slots.flights.begin(), slots.flights.end(), pass.forward ? kNoVisit : owner);
      if (pass.forward && flight == slots.flights.end()) flight = slots.flights.insert(flight, owner);
      require(flight != slots.flights.end(), "micro-batch ", owner.micro_batch, " goes backward without forward");
      *flight = pass.forward ? owner : kNoVisit;
      lanes.push_back({owner.micro_batch, static_cast<int>(flight - slots.flights.begin())});
    }
    b.begin(!pass.forward && lanes.back().micro_batch + 1 >= micro_batches);
    add_pass(s, b, pass, lanes, behind(i - 1));
  }
  return b.take();
}

std::vector<Task> build_evaluation(const StepShape& s, Slots& slots) {
  StepShape forward = s;
  for (Part& part : forward.forward_parts) part.beside = Beside::nothing;
  ScheduleBuilder b(forward, slots, false);
  const Need head{s.head};
  for (int chunk = 0; chunk < s.stages.chunks; ++chunk) {
    const ChunkPass pass(s, {.backward = false, .micro_batch = 0, .chunk = chunk});
    add_pass(forward, b, pass, {{}}, pass.has_head ? head : Need{});
    if (!pass.has_head) continue;
    b.open(head);
    b.add(Kind::head);
    b.close(head);
  }
  return b.take();
}

std::vector<Task> build_update(const StepShape& s, Slots& slots) {
  ScheduleBuilder b(s, slots, true);
  b.reduce_pending();
  for (int piece = 0; piece < std::min(s.state_slots, static_cast<int>(s.pieces.size())); ++piece) b.fetch(piece);
  const UnitRange others{s.first.end, s.units()};
  if (others.begin < others.end) b.add_squares(others);
  b.add_squares(s.first);
  b.add_sums();
  b.update(s.first);
  b.cast(s.first);
  if (others.begin == others.end) return b.take();
  b.update(others);
  b.cast(others);
  return b.take();
}

std::vector<Task> build_refresh(const StepShape& s, Slots& slots) {
  ScheduleBuilder b(s, slots, false);
  b.cast({0, s.units()});
  return b.take();
}

namespace {

constexpr int kShown = 2;  // blocks at either end of a long chunk

std::string unit_name(const StepShape& s, int unit) {
  if (unit == s.embedding) return s.head == s.embedding ? "embedding and head" : "embedding";
  return unit == s.head ? "head" : concat("block ", unit - s.first_block);
}

std::string range_name(const StepShape& s, UnitRange units) {
  return unit_name(s, units.begin) + (units.end - units.begin > 1 ? " to " + unit_name(s, units.end - 1) : "");
}

// A piece of the states, numbered within its unit.
std::string piece_name(const StepShape& s, int piece) {
  const int unit = s.pieces[at(piece)];
  const auto first = std::find(s.pieces.begin(), s.pieces.end(), unit) - s.pieces.begin();
  return concat(unit_name(s, unit), " states ", piece - static_cast<int>(first));
}

// The block of a task of a micro-batch, or -1.
int block_of(const StepShape& s, const Task& task) {
  if (task.kind == Kind::forward || task.kind == Kind::recompute || task.kind == Kind::backward) return task.index;
  return task.kind <= Kind::reduce && task.index != s.embedding && task.index != s.head ? task.index - s.first_block : -1;
}

constexpr std::array<const char*, kSignals> kDone = {"",      "gathered", "closed",  "reduced", "summed",    "received", "taken",
                                                     "given", "sent",     "fetched", "updated", "offloaded", "computed", "exchanged"};

std::string owner_name(const StepShape& s, const Task::Wait& wait) {
  if (wait.signal <= Signal::reduced) return unit_name(s, wait.index);
  return wait.signal <= Signal::sent ? "messages" : concat("states' slot ", wait.index);
}

// The last task above number `i` that leaves the event of a wait.
std::optional<std::size_t> signaller(const std::vector<TimedTask>& tasks, std::size_t i, const Task::Wait& wait) {
  while (i-- > 0) {
    if (tasks[i].task.signals == wait.signal && tasks[i].task.signals_of() == wait.index) return i;
  }
  return std::nullopt;
}

bool is_wait(const Task::Wait& wait) { return wait.signal != Signal::none && wait.index >= 0; }

}  // namespace

std::string name_of(const StepShape& s, const Task& task) {
  // With several stages or lanes micro-batches are under way beside each other.
  const std::string of = s.stages.count > 1 || s.lanes > 1 ? concat(" m", task.micro_batch) : "";
  const std::string unit = unit_name(s, task.index), block = concat("block ", task.index, of);
  const std::string message = task.index == static_cast<int>(Message::activations) ? "activations" : "gradients";
  switch (task.kind) {
    case Kind::gather:
      return "gather " + unit + (task.rowwise && task.columnwise ? "" : task.rowwise ? " rowwise" : " columnwise");
    case Kind::open:
      return "open " + unit;
    case Kind::close:
      return "close " + unit;
    case Kind::reduce:
      return "reduce " + unit;
    case Kind::receive:
      return "receive " + message;
    case Kind::take:
      return "take " + message + of;
    case Kind::give:
      return "give " + message + of;
    case Kind::send:
      return "send " + message;
    case Kind::load:
      return "load" + of;
    case Kind::embed:
      return "embed" + of;
    case Kind::forward:
      return concat(block, " forward: ", s.forward_parts[at(task.part)].name);
    case Kind::recompute:
      return concat(block, " recompute: ", s.forward_parts[at(task.part)].name);
    case Kind::head:
      return "head" + of + ": loss and its gradient";
    case Kind::backward:
      return concat(block, " backward: ", s.backward_parts[at(task.part)].name);
    case Kind::embed_backward:
      return "embedding backward" + of;
    case Kind::squares:
      return "squares of " + range_name(s, task.units);
    case Kind::sums:
      return "sums over ranks";
    case Kind::scales:
      return "scales";
    case Kind::update:
      return task.part < 0 ? "update " + range_name(s, task.units) : "update " + piece_name(s, task.part);
    case Kind::cast:
      return "cast " + range_name(s, task.units);
    case Kind::fetch:
      return "fetch " + piece_name(s, task.part);
    case Kind::offload:
      return "offload " + piece_name(s, task.part);
  }
  return {};
}

std::string_view name_of(StreamId stream) {
  constexpr std::array<std::string_view, kStreams> kNames = {"compute",  "params", "pipeline", "pipeline", "pipeline",
                                                             "pipeline", "fetch",  "offload",  "experts"};
  return kNames[static_cast<std::size_t>(stream)];
}

std::vector<std::size_t> waits_for(const std::vector<TimedTask>& tasks, std::size_t i) {
  std::vector<std::size_t> numbers;
  for (const Task::Wait& wait : tasks[i].task.waits) {
    if (!is_wait(wait)) continue;
    if (const auto number = signaller(tasks, i, wait)) numbers.push_back(*number);
  }
  if (!tasks[i].task.here) return numbers;
  std::size_t before = i;
  while (before > 0 && tasks[before - 1].task.stream != StreamId::compute) --before;
  if (before > 0) numbers.push_back(before - 1);
  return numbers;
}

std::string waits_of(const StepShape& s, const std::vector<TimedTask>& tasks, std::size_t i) {
  std::string text = tasks[i].task.here ? "all of compute above" : "";
  for (const Task::Wait& wait : tasks[i].task.waits) {
    if (!is_wait(wait)) continue;
    const auto number = signaller(tasks, i, wait);
    if (!text.empty()) text += ", ";
    text += number ? concat(*number, " ", name_of(s, tasks[*number].task))
                   : concat(owner_name(s, wait), " ", kDone[static_cast<std::size_t>(wait.signal)], " before");
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
    std::snprintf(line, sizeof line, "%5zu %10.3f %10.3f  %-8s ", i, 1e3 * tasks[i].begin, 1e3 * tasks[i].end,
                  name_of(task.stream).data());
    const std::string waits = waits_of(s, tasks, i);
    text += line + name_of(s, task) + (waits.empty() ? "" : "  waits for " + waits) + "\n";
  }
  return text;
}

}  // namespace octet::parallel
