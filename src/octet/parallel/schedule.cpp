#include "octet/parallel/schedule.h"

#include <algorithm>
#include <set>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Marks a flight that is free.
constexpr Visit kNoVisit{.backward = false, .micro_batch = -1, .chunk = -1};

}  // namespace

int StepShape::slot(int unit, bool in_turn) const {
  if (!in_turn) return unit;
  return unit == embedding || unit == head ? kUnitSlots - 1 : (unit - first_block) % 2;
}

std::vector<UnitRange> update_ranges(const StepShape& s) {
  if (!s.reduced) return {{0, s.units()}};
  const int begin = s.stage == 0 ? s.embedding : s.first_block + blocks_of(s.blocks, s.stages, s.stage).begin;
  std::set<int> used;
  int end = begin;
  while (end < std::min(begin + kUnitSlots, s.units()) && used.insert(s.weight_slot(end)).second) ++end;
  std::vector<UnitRange> ranges = {{begin, end}};
  if (end < s.units()) ranges.push_back({end, s.units()});
  return ranges;
}

Slots::Slots(const StepShape& shape)
    : weights(at(shape.resharded ? kUnitSlots : shape.units())),
      gradient_user(at(shape.sharded_gradients ? kUnitSlots : shape.units()), -1),
      offloaded(at(shape.state_slots), 0) {}

const std::vector<Part>& StepShape::parts_of(Kind kind, int block) const {
  const BlockParts& parts = block_parts[at(block)];
  return kind == Kind::backward ? parts.backward : parts.forward;
}

void ScheduleBuilder::gather(Need need, bool after_compute) {
  if (!s_.sharded || need.unit < 0 || need.use == Use::gradients) return;
  Slots::Weights& slot = slots_.weights[at(s_.weight_slot(need.unit))];
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
                    .after_compute = after_compute,
                    .waits = {{{Kind::close, slot.closed}}},
                    .leaves_event = true});
  slot.rowwise = rowwise || (there && slot.rowwise);
  slot.columnwise = columnwise || (there && slot.columnwise);
  slot.unit = need.unit;
}

void ScheduleBuilder::open(Need need) {
  if (!s_.sharded) return;
  Task task{.kind = Kind::open, .index = need.unit, .use = need.use};
  if (need.use != Use::gradients) {
    gather(need);
    Slots::Weights& slot = slots_.weights[at(s_.weight_slot(need.unit))];
    require(slot.unit == need.unit, "unit ", need.unit, " cannot be used together with unit ", slot.unit);
    slot.open = true;
    task.waits[0] = {Kind::gather, need.unit};
  }
  if (writes_gradients(need.use) && s_.sharded_gradients) {
    const int slot = s_.gradient_slot(need.unit);
    if (slots_.pending >= 0 && s_.gradient_slot(slots_.pending) == slot) reduce_pending();
    task.waits[1] = {Kind::reduce, slots_.gradient_user[at(slot)]};
  }
  tasks_.push_back(task);
}

void ScheduleBuilder::close(Need need) {
  const bool reduces = writes_gradients(need.use) && s_.reduced && (last_ || s_.sharded_gradients);
  if (writes_gradients(need.use)) reduce_pending();
  tasks_.push_back({.kind = Kind::close, .index = need.unit, .use = need.use, .leaves_event = s_.reduced});
  if (reduces) slots_.pending = need.unit;
  if (!s_.sharded || need.use == Use::gradients) return;
  Slots::Weights& slot = slots_.weights[at(s_.weight_slot(need.unit))];
  slot.open = false;
  if (s_.resharded) slot.closed = need.unit;
}

void ScheduleBuilder::reduce_pending(bool after_compute) {
  const int unit = std::exchange(slots_.pending, -1);
  if (unit < 0) return;
  const bool first = std::erase(slots_.reduced, unit) == 0;
  slots_.reduced.push_back(unit);
  tasks_.push_back({.kind = Kind::reduce,
                    .stream = StreamId::params,
                    .index = unit,
                    .first = first,
                    .last = last_,
                    .after_compute = after_compute,
                    .waits = {{{Kind::close, after_compute ? -1 : unit}}},
                    .leaves_event = true});
  if (s_.sharded_gradients) slots_.gradient_user[at(s_.gradient_slot(unit))] = unit;
}

void ScheduleBuilder::add_part(Kind kind, int block, int part, Need next) {
  const std::vector<Part>& parts = s_.parts_of(kind, block);
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
  const auto changes = [&](int other) { return other >= 0 && other < count && parts[at(other)].stream != task.stream; };
  if (changes(part - 1)) task.waits[0] = {kind, lane_.flight};
  task.leaves_event = changes(part + 1);
}

void ScheduleBuilder::take(Message message) {
  const int m = static_cast<int>(message);
  tasks_.push_back({.kind = Kind::receive, .stream = receive_stream(message), .index = m, .leaves_event = true});
  if (std::exchange(slots_.taken[at(m)], true)) tasks_.back().waits[0] = {Kind::take, m};
  add(Kind::take, m);
  tasks_.back().waits[0] = {Kind::receive, m};
  tasks_.back().leaves_event = true;
}

void ScheduleBuilder::send(Message message) {
  const int m = static_cast<int>(message);
  add(Kind::give, m);
  if (std::exchange(slots_.sent[at(m)], true)) tasks_.back().waits[0] = {Kind::send, m};
  tasks_.back().leaves_event = true;
  tasks_.push_back(
      {.kind = Kind::send, .stream = send_stream(message), .index = m, .waits = {{{Kind::give, m}}}, .leaves_event = true});
}

// Reductions follow each other on one stream, so the last one of these units ends after the others.
void ScheduleBuilder::add_squares(UnitRange units) {
  const auto last = std::find_if(slots_.reduced.rbegin(), slots_.reduced.rend(), [&](int unit) { return units.contains(unit); });
  tasks_.push_back({.kind = Kind::squares, .units = units});
  if (last != slots_.reduced.rend()) tasks_.back().waits[0] = {Kind::reduce, *last};
}

void ScheduleBuilder::add_sums() {
  tasks_.push_back({.kind = Kind::sums,
                    .stream = s_.reduced ? StreamId::params : StreamId::compute,
                    .after_compute = s_.reduced,
                    .leaves_event = s_.reduced});
  tasks_.push_back({.kind = Kind::scales});
  if (s_.reduced) tasks_.back().waits[0] = {Kind::sums, 0};
}

void ScheduleBuilder::fetch(int piece) {
  const int slot = piece % s_.state_slots;
  tasks_.push_back({.kind = Kind::fetch, .stream = StreamId::fetch, .index = slot, .part = piece, .leaves_event = true});
  if (slots_.offloaded[at(slot)]) tasks_.back().waits[0] = {Kind::offload, slot};
}

void ScheduleBuilder::update(int number) {
  const UnitRange units = s_.updates[at(number)];
  if (s_.pieces.empty()) return tasks_.push_back({.kind = Kind::update, .index = number, .part = -1, .units = units});
  const int count = static_cast<int>(s_.pieces.size());
  for (int piece = 0; piece < count; ++piece) {
    if (!units.contains(s_.pieces[at(piece)])) continue;
    const int slot = piece % s_.state_slots;
    const Task::Wait fetched{Kind::fetch, slot}, updated{Kind::update, slot};
    tasks_.push_back({.kind = Kind::update, .index = slot, .part = piece, .waits = {{fetched}}, .leaves_event = true});
    tasks_.push_back({.kind = Kind::offload,
                      .stream = StreamId::offload,
                      .index = slot,
                      .part = piece,
                      .waits = {{updated}},
                      .leaves_event = true});
    slots_.offloaded[at(slot)] = 1;
    if (piece + s_.state_slots < count) fetch(piece + s_.state_slots);
  }
}

void ScheduleBuilder::cast(UnitRange units) {
  tasks_.push_back({.kind = Kind::cast,
                    .stream = s_.sharded ? StreamId::params : StreamId::compute,
                    .units = units,
                    .after_compute = s_.sharded});
  for (Slots::Weights& slot : slots_.weights) {
    if (units.contains(slot.unit)) slot.rowwise = slot.columnwise = false;
  }
  for (int unit = s_.updates.front().begin; unit < s_.updates.front().end; ++unit) {
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
  // The units that it reads, in their order.
  std::vector<Need> needs(const StepShape& s) const {
    std::vector<Need> units;
    if (forward && has_embedding) units.push_back({s.embedding});
    if (!forward && has_head) units.push_back({s.head, Use::both});
    for (int i = blocks.begin; i < blocks.end; ++i) {
      const int block = forward ? i : blocks.begin + blocks.end - 1 - i;
      units.push_back({s.first_block + block, forward ? Use::forward : s.recomputes(block) ? Use::both : Use::backward});
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
  int block = -1, part = 0;            // of a task of a block
  bool opens = false, closes = false;  // begins or ends the use of the unit
};

// `needs`: the units that the pass reads; the embedding's backward comes after them.
std::vector<Step> steps_of(const StepShape& s, const ChunkPass& pass, const std::vector<Need>& needs) {
  std::vector<Step> steps;
  const std::size_t units = needs.size();
  const auto add_parts = [&](Kind kind, std::size_t unit) {
    const int block = needs[unit].unit - s.first_block, parts = static_cast<int>(s.parts_of(kind, block).size());
    for (int part = 0; part < parts; ++part) steps.push_back({kind, unit, block, part});
  };
  if (pass.forward) steps.push_back({Kind::load});
  if (pass.forward ? !pass.has_embedding : !pass.has_head) steps.push_back({Kind::take});
  for (std::size_t unit = 0; unit < units; ++unit) {
    const std::size_t first = steps.size();
    if (unit == 0 && pass.forward && pass.has_embedding) {
      steps.push_back({Kind::embed});
    } else if (unit == 0 && !pass.forward && pass.has_head) {
      steps.push_back({Kind::head});
    } else if (pass.forward) {
      add_parts(Kind::forward, unit);
    } else {
      if (s.recomputes(needs[unit].unit - s.first_block)) add_parts(Kind::recompute, unit);
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
// lane computes. It also ends before it would open a second block: the next lane must first close the one that shares its slot.
std::vector<std::size_t> turns_of(const StepShape& s, const std::vector<Step>& steps) {
  std::vector<std::size_t> ends;
  bool opened = false;  // whether this turn has opened a block
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (step.block < 0) continue;
    const bool exchanges = s.parts_of(step.kind, step.block)[at(step.part)].stream == StreamId::experts;
    if (exchanges || (step.opens && opened)) {
      ends.push_back(i);
      opened = false;
    }
    opened = opened || step.opens;
  }
  ends.push_back(steps.size());
  return ends;
}

// Adds passes through a chunk, which take turns. The first one opens a unit, the last one closes it. `behind` is the unit that
// the next pass reads first.
void add_pass(const StepShape& s, ScheduleBuilder& b, const ChunkPass& pass, const std::vector<Lane>& lanes, Need behind) {
  std::vector<Need> needs = pass.needs(s);
  const std::vector<Step> steps = steps_of(s, pass, needs);
  needs.push_back(behind);  // which is gathered here, but not opened
  const auto next = [&](std::size_t unit) { return unit + 1 < needs.size() ? needs[unit + 1] : Need{}; };
  const auto need = [&](const Step& step) {
    return step.unit + 1 < needs.size() ? needs[step.unit] : Need{s.embedding, Use::gradients};
  };
  // A part during which units may be gathered comes after the exchange of keys, which uses the same links.
  const std::vector<Part>& parts = s.block_parts.front().forward;
  const bool beside =
      pass.forward && std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.beside == Beside::gather; });
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
    } else if (step.block < 0) {
      b.add(step.kind, step.kind == Kind::load ? pass.visit.chunk : 0);
    } else {
      b.add_part(step.kind, step.block, step.part, step.kind == Kind::forward ? next(step.unit) : Need{});
    }
    if (!step.closes || !last_lane) return;
    b.close(need(step));
    if (newest > step.unit) b.gather(next(newest));  // its slot has just become free
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
    const std::vector<Need> needs = i + 1 < visits.size() ? ChunkPass(s, visits[i + 1]).needs(s) : std::vector<Need>{};
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
      const Begins begins = !lanes.empty() ? Begins::none : owner.micro_batch == 0 ? Begins::all : Begins::slots;
      lanes.push_back({owner.micro_batch, static_cast<int>(flight - slots.flights.begin()), begins});
    }
    b.begin(!pass.forward && lanes.back().micro_batch + 1 >= micro_batches);
    add_pass(s, b, pass, lanes, behind(i - 1));
  }
  return b.finish();
}

std::vector<Task> build_evaluation(const StepShape& s, Slots& slots) {
  StepShape forward = s;
  for (StepShape::BlockParts& parts : forward.block_parts) {
    for (Part& part : parts.forward) part.beside = Beside::nothing;
  }
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
  return b.finish();
}

// The gradients of the units that are updated first are complete last.
std::vector<Task> build_update(const StepShape& s, Slots& slots) {
  ScheduleBuilder b(s, slots, true);
  b.reduce_pending();
  for (int piece = 0; piece < std::min(s.state_slots, static_cast<int>(s.pieces.size())); ++piece) b.fetch(piece);
  for (auto units = s.updates.rbegin(); units != s.updates.rend(); ++units) b.add_squares(*units);
  b.add_sums();
  for (std::size_t number = 0; number < s.updates.size(); ++number) {
    b.update(static_cast<int>(number));
    b.cast(s.updates[number]);
  }
  return b.finish();
}

}  // namespace octet::parallel
