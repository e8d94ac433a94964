#include "octet/parallel/schedule.h"

#include <algorithm>
#include <functional>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }
std::size_t at(StreamId stream) { return static_cast<std::size_t>(stream); }

// Marks a flight that is free.
constexpr Visit kNoVisit{.backward = false, .micro_batch = -1, .chunk = -1};

struct Access {
  Memory memory;
  IndexRange<int> of;
  bool writes;
};

// Returns what a task reads and writes.
std::vector<Access> uses(const StepShape& s, const Task& t) {
  using enum Memory;
  const int weights = s.weight_slot(t.index), gradients = s.gradient_slot(t.index);
  const auto reads = [](Memory memory, int i, bool does = true) { return Access{memory, {i, i + does}, false}; };
  const auto writes = [](Memory memory, int i, bool does = true) { return Access{memory, {i, i + does}, true}; };
  switch (t.kind) {
    case Kind::gather:
      return {reads(shard, t.index), writes(rowwise, weights, t.values || t.rowwise),
              writes(columnwise, weights, t.values || t.columnwise)};
    case Kind::open:
    case Kind::close:  // and the computation between them
      return {reads(rowwise, weights, reads_forward(t.use)), reads(columnwise, weights, reads_backward(t.use)),
              writes(gradient, gradients, writes_gradients(t.use))};
    case Kind::reduce:
      return {reads(gradient, gradients), writes(summed, t.index)};
    case Kind::receive:
      return {writes(received, t.index)};
    case Kind::take:
      return {reads(received, t.index), writes(flight, t.flight)};
    case Kind::give:
      return {reads(flight, t.flight), writes(sent, t.index)};
    case Kind::send:
      return {reads(sent, t.index)};
    case Kind::squares:
    case Kind::sums:
    case Kind::scales:
      return {{summed, t.units, false}, writes(counts, 0)};
    case Kind::update:
      return {reads(counts, 0), {summed, t.units, false}, {shard, t.units, true}, writes(states, t.index, t.part >= 0)};
    case Kind::cast:
      return {{shard, t.units, true}};
    case Kind::fetch:
      return {reads(offloaded, t.part), writes(states, t.index)};
    case Kind::offload:
      return {reads(states, t.index), writes(offloaded, t.part)};
    default: {  // the computation of a micro-batch
      const Part part = is_part(t.kind) ? s.parts_of(t.kind, t.index)[at(t.part)] : Part{""};
      return {writes(flight, t.flight, part.rest), writes(keys, t.flight, part.keys)};
    }
  }
}

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

Slots::Slots(const StepShape& shape) : weights(at(shape.resharded ? kUnitSlots : shape.units())) {}

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
  add({.kind = Kind::gather,
       .stream = StreamId::params,
       .index = need.unit,
       .values = !there || !(slot.rowwise || slot.columnwise),
       .rowwise = rowwise,
       .columnwise = columnwise,
       .after_compute = after_compute});
  slot.rowwise = rowwise || (there && slot.rowwise);
  slot.columnwise = columnwise || (there && slot.columnwise);
  slot.unit = need.unit;
}

void ScheduleBuilder::open(Need need) {
  if (!s_.sharded) return;
  if (need.use != Use::gradients) {
    gather(need);
    Slots::Weights& slot = slots_.weights[at(s_.weight_slot(need.unit))];
    require(slot.unit == need.unit, "unit ", need.unit, " cannot be used together with unit ", slot.unit);
    slot.open = true;
  }
  if (writes_gradients(need.use) && s_.gradient_slot(slots_.pending) == s_.gradient_slot(need.unit)) reduce_pending();
  add({.kind = Kind::open, .index = need.unit, .use = need.use});
}

void ScheduleBuilder::close(Need need) {
  const bool reduces = writes_gradients(need.use) && s_.reduced && (last_ || s_.sharded_gradients);
  if (writes_gradients(need.use)) reduce_pending();
  add({.kind = Kind::close, .index = need.unit, .use = need.use});
  if (reduces) slots_.pending = need.unit;
  if (need.use != Use::gradients) slots_.weights[at(s_.weight_slot(need.unit))].open = false;
}

void ScheduleBuilder::reduce_pending(bool after_compute) {
  const int unit = std::exchange(slots_.pending, -1);
  if (unit < 0) return;
  add({.kind = Kind::reduce,
       .stream = StreamId::params,
       .index = unit,
       .first = slots_.reduced.insert(unit).second,
       .last = last_,
       .after_compute = after_compute});
}

void ScheduleBuilder::add_part(Kind kind, int block, int part, Need next) {
  const std::vector<Part>& parts = s_.parts_of(kind, block);
  const Part& of = parts[at(part)];
  if (of.beside == Beside::gather) gather(next, true);
  if (of.beside == Beside::reduce) reduce_pending(true);
  add(kind, block);
  Task& task = tasks_.back();
  task.stream = of.stream;
  task.after_compute = of.after_compute;
  task.part = part;
  task.first = part == 0;
  task.last = at(part) + 1 == parts.size();
}

void ScheduleBuilder::cast(UnitRange units) {
  add({.kind = Kind::cast, .stream = s_.sharded ? StreamId::params : StreamId::compute, .units = units});
  for (Slots::Weights& slot : slots_.weights) {
    if (units.contains(slot.unit)) slot.rowwise = slot.columnwise = false;
  }
  for (int unit = s_.updates.front().begin; unit < s_.updates.front().end; ++unit) {
    if (units.contains(unit)) gather({unit, Use::forward});
  }
}

// A task that reads memory waits for the task that wrote it last. A task that writes memory also waits for all that have read it
// since. Tasks of one stream run one after another. A wait that others imply is left out.
std::vector<Task> ScheduleBuilder::finish() {
  std::vector<Task> tasks = std::exchange(tasks_, {});
  if (!s_.reduced && s_.stages.count == 1 && s_.lanes == 1 && s_.pieces.empty()) return tasks;  // all on one stream
  const std::int64_t first = slots_.tasks + 1;
  const auto leave_event = [&](const Slots::User& user) {
    const std::int64_t number = user.ended[at(user.stream)];
    if (number >= first) tasks[static_cast<std::size_t>(number - first)].leaves_event = true;
  };
  for (Task& task : tasks) {
    Slots::Ended& ended = slots_.ended[at(task.stream)];
    const auto add = [&](const Slots::Ended& more) {
      for (std::size_t i = 0; i < kStreams; ++i) ended[i] = std::max(ended[i], more[i]);
    };
    if (task.after_compute) add(slots_.ended[at(StreamId::compute)]);
    const std::vector<Access> accesses = uses(s_, task);
    std::map<std::int64_t, Slots::User, std::greater<>> needed;  // by number; a task can imply only smaller ones
    for (const auto& [memory, of, writes] : accesses) {
      for (int i = of.begin; i < of.end; ++i) {
        for (const Slots::User& user : slots_.users[{memory, i}]) {
          if (writes || user.writes) needed.emplace(user.ended[at(user.stream)], user);
        }
      }
    }
    for (const auto& [number, user] : needed) {
      if (number <= ended[at(user.stream)]) continue;
      task.waits.push_back(user.event);
      leave_event(user);
      add(user.ended);
    }
    ended[at(task.stream)] = ++slots_.tasks;
    for (const auto& [memory, of, writes] : accesses) {
      for (int i = of.begin; i < of.end; ++i) {
        std::vector<Slots::User>& users = slots_.users[{memory, i}];
        std::erase_if(users, [&](const Slots::User& user) { return writes || (!user.writes && user.stream == task.stream); });
        users.push_back({{task.kind, task.event()}, task.stream, writes, ended});
      }
    }
  }
  for (const auto& [memory, users] : slots_.users) std::for_each(users.begin(), users.end(), leave_event);  // for later lists
  return tasks;
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
  const int of_message = static_cast<int>(message);
  std::size_t newest = 0;  // of the units that are open
  const auto add = [&](const Step& step, bool first_lane, bool last_lane) {
    if (step.opens && first_lane) {
      b.open(need(step));
      if (!beside || need(step).unit == s.embedding) b.gather(next(step.unit));
      newest = step.unit;
    }
    if (step.kind == Kind::take) {
      b.add({.kind = Kind::receive, .stream = receive_stream(message), .index = of_message});
      b.add(Kind::take, of_message);
    } else if (step.kind == Kind::give) {
      b.add(Kind::give, of_message);
      b.add({.kind = Kind::send, .stream = send_stream(message), .index = of_message});
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
      const auto overwrites = !lanes.empty() ? Overwrites::none : owner.micro_batch == 0 ? Overwrites::all : Overwrites::slots;
      lanes.push_back({owner.micro_batch, static_cast<int>(flight - slots.flights.begin()), overwrites});
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

// The gradients of the units that are updated first are complete last. Pieces of states are fetched as soon as there is a slot.
std::vector<Task> build_update(const StepShape& s, Slots& slots) {
  ScheduleBuilder b(s, slots, true);
  const int pieces = static_cast<int>(s.pieces.size());
  // A piece is fetched when the piece that was in its slot has been updated, so they must be updated in the order of their
  // numbers.
  require(std::is_sorted(s.pieces.begin(), s.pieces.end()), "pieces of optimizer states are not in the order of their units");
  const auto fetch = [&](int piece) {
    if (piece >= pieces) return;
    b.add({.kind = Kind::fetch, .stream = StreamId::fetch, .index = piece % s.state_slots, .part = piece});
  };
  b.reduce_pending();
  for (int piece = 0; piece < s.state_slots; ++piece) fetch(piece);
  for (auto units = s.updates.rbegin(); units != s.updates.rend(); ++units) b.add({.kind = Kind::squares, .units = *units});
  b.add({.kind = Kind::sums, .stream = s.reduced ? StreamId::params : StreamId::compute});
  b.add({.kind = Kind::scales});
  for (int number = 0; number < static_cast<int>(s.updates.size()); ++number) {
    const UnitRange units = s.updates[at(number)];
    if (pieces == 0) b.add({.kind = Kind::update, .index = number, .part = -1, .units = units});
    for (int piece = 0; piece < pieces; ++piece) {
      const int unit = s.pieces[at(piece)], slot = piece % s.state_slots;
      if (!units.contains(unit)) continue;
      b.add({.kind = Kind::update, .index = slot, .part = piece, .units = {unit, unit + 1}});
      b.add({.kind = Kind::offload, .stream = StreamId::offload, .index = slot, .part = piece});
      fetch(piece + s.state_slots);
    }
    b.cast(units);
  }
  return b.finish();
}

}  // namespace octet::parallel
