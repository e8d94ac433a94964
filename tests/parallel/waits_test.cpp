// Tests that no task reads or overwrites what another stream may still use, and that each wait is needed. The rules here do not
// come from uses() in schedule.cpp: each names two kinds of tasks that may not change their order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/require.h"
#include "octet/parallel/schedule.h"
#include "support/step_shapes.h"

namespace octet::parallel {
namespace {

using testing::build_micro_batch;
using testing::shape_of;
using testing::shape_of_lanes;

// For each task, the last task of each stream that has ended when it begins: those before it on its stream, those that it waits
// for, and what had ended before these.
class Ended {
 public:
  explicit Ended(const std::vector<Task>& tasks) : tasks_(tasks) {
    constexpr long kNone = -1;
    std::array<Last, kStreams> latest;  // what has ended after the latest task of each stream
    for (Last& last : latest) last.fill(kNone);
    std::map<std::pair<Kind, int>, Last> events;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      Last last = latest[at(task.stream)];
      const auto add = [&](const Last& more) {
        for (std::size_t s = 0; s < kStreams; ++s) last[s] = std::max(last[s], more[s]);
      };
      if (task.after_compute) add(latest[at(StreamId::compute)]);
      for (const Task::Wait& wait : task.waits) {
        const auto event = events.find({wait.kind, wait.number});
        if (event == events.end()) {
          ADD_FAILURE() << "task " << i << " waits for an event that no task has left";
          continue;
        }
        add(event->second);
      }
      last_.push_back(last);
      last[at(task.stream)] = static_cast<long>(i);
      latest[at(task.stream)] = last;
      if (task.leaves_event) events[{task.kind, task.event()}] = last;
    }
  }
  // Returns whether task `before` has ended when task i begins.
  bool operator()(std::size_t i, std::size_t before) const {
    return last_[i][at(tasks_[before].stream)] >= static_cast<long>(before);
  }

 private:
  using Last = std::array<long, kStreams>;
  static std::size_t at(StreamId stream) { return static_cast<std::size_t>(stream); }
  const std::vector<Task>& tasks_;
  std::vector<Last> last_;
};

// When a task of kind `task` begins, an earlier task of kind `before` must have ended: the last one in the list for which `holds`
// is true.
struct Rule {
  Kind task, before;
  bool (*holds)(const StepShape&, const Task& task, const Task& before);
};

bool always(const StepShape&, const Task&, const Task&) { return true; }
bool same_index(const StepShape&, const Task& a, const Task& b) { return a.index == b.index; }
bool same_piece(const StepShape&, const Task& a, const Task& b) { return a.part >= 0 && a.part == b.part; }
bool has_unit(const StepShape&, const Task& range, const Task& unit) { return range.units.contains(unit.index); }
bool is_unit_of(const StepShape&, const Task& unit, const Task& range) { return range.units.contains(unit.index); }
bool share_units(const StepShape&, const Task& a, const Task& b) {
  return a.units.begin < b.units.end && b.units.begin < a.units.end;
}
bool writes_same_gradients(const StepShape& s, const Task& a, const Task& b) {
  return writes_gradients(a.use) && s.gradient_slot(a.index) == s.gradient_slot(b.index);
}
// Returns whether a gather overwrites weights that the unit of a close has read.
bool overwrites_weights(const StepShape& s, const Task& gather, const Task& close) {
  if (close.use == Use::gradients || s.weight_slot(gather.index) != s.weight_slot(close.index)) return false;
  return gather.index != close.index || gather.values || (gather.rowwise && reads_forward(close.use)) ||
         (gather.columnwise && reads_backward(close.use));
}

std::string_view part_of(const StepShape& s, const Task& task) {
  return s.parts_of(task.kind, task.index)[static_cast<std::size_t>(task.part)].name;
}
// Returns whether these are tasks of a micro-batch in the same block, of two parts with these names.
template <const char* kTask, const char* kBefore>
bool are_parts(const StepShape& s, const Task& task, const Task& before) {
  return task.flight == before.flight && task.index == before.index && part_of(s, task) == kTask && part_of(s, before) == kBefore;
}
constexpr char kKeys[] = "keys", kRest[] = "attention_rest", kSums[] = "key_sums", kQkv[] = "qkv";

constexpr std::array kRules = {
    Rule{Kind::backward, Kind::backward, are_parts<kRest, kKeys>},
    Rule{Kind::backward, Kind::backward, are_parts<kSums, kRest>},
    Rule{Kind::backward, Kind::backward, are_parts<kQkv, kSums>},
    Rule{Kind::gather, Kind::close, overwrites_weights},
    Rule{Kind::gather, Kind::cast, is_unit_of},
    Rule{Kind::open, Kind::reduce, writes_same_gradients},
    Rule{Kind::close, Kind::reduce, writes_same_gradients},
    Rule{Kind::reduce, Kind::close,
         [](const StepShape&, const Task& a, const Task& b) { return a.index == b.index && writes_gradients(b.use); }},
    Rule{Kind::reduce, Kind::update, is_unit_of},
    Rule{Kind::squares, Kind::reduce, has_unit},
    Rule{Kind::squares, Kind::sums, always},
    Rule{Kind::sums, Kind::squares, always},
    Rule{Kind::scales, Kind::sums, always},
    Rule{Kind::update, Kind::scales, always},
    Rule{Kind::update, Kind::reduce, has_unit},
    Rule{Kind::update, Kind::gather, has_unit},
    Rule{Kind::update, Kind::cast, share_units},
    Rule{Kind::cast, Kind::update, share_units},
    Rule{Kind::cast, Kind::gather, has_unit},
    Rule{Kind::update, Kind::fetch, same_piece},
    Rule{Kind::offload, Kind::update, same_piece},
    Rule{Kind::fetch, Kind::offload, same_piece},
    Rule{Kind::fetch, Kind::offload, same_index},
    Rule{Kind::fetch, Kind::update,
         [](const StepShape&, const Task& a, const Task& b) { return b.part >= 0 && a.index == b.index; }},
    Rule{Kind::receive, Kind::take, same_index},
    Rule{Kind::take, Kind::receive, same_index},
    Rule{Kind::give, Kind::send, same_index},
    Rule{Kind::send, Kind::give, same_index},
};

// Returns what could go wrong, in words.
class Hazards {
 public:
  Hazards(const StepShape& shape, const std::vector<Task>& tasks) : s_(shape), tasks_(tasks), ended_(tasks) {}

  std::string find() {
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const Task& task = tasks_[i];
      for (const Rule& rule : kRules) {
        if (rule.task != task.kind) continue;
        check_after(i, [&](const Task& t) { return t.kind == rule.before && rule.holds(s_, task, t); });
      }
      if (task.kind == Kind::open && reads_forward(task.use)) check_gathered(i, &Task::rowwise);
      if (task.kind == Kind::open && reads_backward(task.use)) check_gathered(i, &Task::columnwise);
      if (has_flight(task) && !exchanges_keys(task)) {  // the tasks of a micro-batch run in their order
        check_after(i, [&](const Task& t) { return has_flight(t) && !exchanges_keys(t) && t.flight == task.flight; });
      }
      if (exchanges_keys(task) && part_of(s_, task) == kKeys) {  // it reads and reuses memory of the computation before
        check_after(i, [&](const Task& t) { return t.stream == StreamId::compute; });
      }
    }
    return found_;
  }

 private:
  static bool has_flight(const Task& t) {
    return t.kind == Kind::take || t.kind == Kind::give || (t.kind >= Kind::load && t.kind <= Kind::embed_backward);
  }
  bool exchanges_keys(const Task& t) const {
    return t.kind == Kind::backward && (part_of(s_, t) == kKeys || part_of(s_, t) == kSums);
  }
  bool same_weights(int a, int b) const { return s_.weight_slot(a) == s_.weight_slot(b); }
  template <class Holds>
  void check_after(std::size_t i, const Holds& holds) {
    for (std::size_t before = i; before-- > 0;) {
      if (!holds(tasks_[before])) continue;
      if (!ended_(i, before)) found_ += concat(i, " need not wait for ", before, "\n");
      return;
    }
  }
  // The copy was gathered, and nothing else has come to its slot since.
  void check_gathered(std::size_t i, bool Task::*copy) {
    for (std::size_t before = i; before-- > 0;) {
      const Task& task = tasks_[before];
      if (task.kind != Kind::gather || !same_weights(task.index, tasks_[i].index)) continue;
      if (task.index != tasks_[i].index) break;
      if (!(task.*copy)) continue;
      if (!ended_(i, before)) found_ += concat(i, " need not wait for ", before, "\n");
      return;
    }
    found_ += concat(i, " opens a unit that was not gathered\n");
  }

  const StepShape& s_;
  const std::vector<Task>& tasks_;
  const Ended ended_;
  std::string found_;
};

// Demands that no task begins too early, and that without any one of the waits a task could.
void expect_waits(const StepShape& s, std::vector<Task> tasks, bool each_is_needed = false) {
  ASSERT_EQ(Hazards(s, tasks).find(), "");
  for (std::size_t i = 0; each_is_needed && i < tasks.size(); ++i) {
    for (std::size_t wait = 0; wait < tasks[i].waits.size(); ++wait) {
      std::vector<Task> without = tasks;
      without[i].waits.erase(without[i].waits.begin() + static_cast<std::ptrdiff_t>(wait));
      EXPECT_NE(Hazards(s, without).find(), "")
          << "task " << i << " need not wait for kind " << static_cast<int>(tasks[i].waits[wait].kind);
    }
  }
}

// Appends tasks to a list.
void append(std::vector<Task>& tasks, const std::vector<Task>& more) { tasks.insert(tasks.end(), more.begin(), more.end()); }

// Two steps of several micro-batches, and an evaluation after each.
std::vector<Task> steps_of(const StepShape& s, int micro_batches) {
  Slots slots(s);
  std::vector<Task> tasks;
  const std::vector<Visit> visits = visits_of(s.stages, s.stage, micro_batches, s.lanes);
  for (int step = 0; step < 2; ++step) {
    slots.reduced.clear();
    append(tasks, build_visits(s, slots, visits, 0, visits.size(), micro_batches));
    append(tasks, build_update(s, slots));
    append(tasks, build_evaluation(s, slots));
  }
  return tasks;
}

// Sets the units that are updated together. With offload, each of them has two pieces of states.
void set_updates(StepShape& s, bool offloads) {
  s.updates = update_ranges(s);
  if (!offloads) return;
  for (int unit = s.updates.front().begin; unit < s.updates.back().end; ++unit) s.pieces.insert(s.pieces.end(), {unit, unit});
  s.state_slots = 3;
}

// Every shape, in steps of three micro-batches with an evaluation in between.
TEST(Waits, StreamsWaitForWhatTheyReadAndOverwrite) {
  int shapes = 0;
  for (int bits = 0; bits < 1 << 7; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    for (const int blocks : {1, 2, 3, 6}) {
      StepShape s = shape_of(blocks, bit(0));
      s.sharded = s.reduced = true;
      s.resharded = bit(1);
      s.sharded_gradients = bit(2);
      s.recomputed_blocks = bit(3) ? (blocks + 1) / 2 : 0;
      for (StepShape::BlockParts& parts : s.block_parts) parts.forward[1].beside = bit(4) ? Beside::gather : Beside::nothing;
      if (bit(5)) s.two_copies.assign(s.two_copies.size(), 1);
      set_updates(s, bit(6));
      SCOPED_TRACE(concat(blocks, " blocks, bits ", bits));
      Slots slots(s);
      std::vector<Task> tasks;
      std::vector<int> reduced(s.two_copies.size(), 0), first(reduced), last(reduced);
      for (int micro = 0; micro < 3; ++micro) append(tasks, build_micro_batch(s, slots, micro == 2));
      for (const Task& task : tasks) {
        if (task.kind != Kind::reduce) continue;
        const auto unit = static_cast<std::size_t>(task.index);
        ++reduced[unit];
        first[unit] += task.first;
        last[unit] += task.last;
      }
      for (std::size_t unit = 0; unit < reduced.size(); ++unit) {
        EXPECT_EQ(reduced[unit], s.sharded_gradients ? 3 : 1) << "unit " << unit;
        EXPECT_EQ(first[unit], 1) << "unit " << unit;
        EXPECT_EQ(last[unit], 1) << "unit " << unit;
      }
      append(tasks, build_evaluation(s, slots));
      append(tasks, build_update(s, slots));
      append(tasks, build_micro_batch(s, slots, true));
      append(tasks, build_update(s, slots));
      expect_waits(s, tasks, blocks == 3);
      EXPECT_EQ(slots.pending, -1);
      ++shapes;
    }
  }
  EXPECT_EQ(shapes, 512);
}

// Tests each stage with 1F1B and with the interleaved schedule, on one rank and on several.
TEST(Waits, StagesWaitForMessagesAndForTheirMemory) {
  for (const Stages stages : {Stages{2, 1}, Stages{4, 1}, Stages{2, 2}}) {
    for (int stage = 0; stage < stages.count; ++stage) {
      for (int bits = 0; bits < 1 << 4; ++bits) {
        const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
        StepShape s = shape_of(8, false);
        s.stages = stages;
        s.stage = stage;
        s.reduced = s.sharded = bit(0);
        s.resharded = bit(0) && bit(1);
        s.sharded_gradients = bit(0) && bit(2);
        set_updates(s, bit(3));
        SCOPED_TRACE(concat("stage ", stage, " of ", stages.count, ", ", stages.chunks, " chunks, bits ", bits));
        expect_waits(s, steps_of(s, 4), true);
      }
    }
  }
}

// Tests blocks that are dense or mixtures, on one stage and on two, and micro-batches that take turns. The exchanges wait for no
// more than they have to: the next part of the computation begins beside them.
TEST(Waits, KeysAreExchangedBesideTheComputation) {
  for (int bits = 0; bits < 1 << 5; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    for (const int stages : {1, 2}) {
      if (stages > 1 && bit(4)) continue;
      StepShape s = bit(4) ? shape_of_lanes(4, bit(0)) : shape_of(4, bit(0) && stages == 1);
      testing::add_context(s);
      s.stages = {.count = stages, .chunks = 1};
      s.resharded = bit(1);
      s.sharded_gradients = bit(2);
      s.recomputed_blocks = bit(3) ? 2 : 0;
      set_updates(s, false);
      SCOPED_TRACE(concat(stages, " stages, bits ", bits));
      const std::vector<Task> tasks = steps_of(s, 2);
      expect_waits(s, tasks, true);
      const Ended ended(tasks);
      int exchanges = 0;
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i].kind != Kind::backward || (part_of(s, tasks[i]) != kKeys && part_of(s, tasks[i]) != kSums)) continue;
        EXPECT_NE(tasks[i].stream, StreamId::compute);
        std::size_t next = i + 1;
        while (tasks[next].stream != StreamId::compute) ++next;
        EXPECT_FALSE(ended(next, i)) << next << " waits for " << i;
        ++exchanges;
      }
      EXPECT_EQ(exchanges, 2 * 2 * 2 * 4 / stages);  // exchanges of each block, steps, micro-batches, blocks
    }
  }
}

// Over several steps, with every number of pieces: a piece is updated after it was fetched, fetched after the step before has
// copied it back and after its slot is free, and copied back after its update.
TEST(Waits, PiecesOfStatesWaitForTheirSlots) {
  for (int pieces = 1; pieces <= 9; ++pieces) {
    SCOPED_TRACE(pieces);
    StepShape s = shape_of(2, false);
    s.updates = {{0, 2}, {2, s.units()}};
    for (int piece = 0; piece < pieces; ++piece) s.pieces.push_back(piece * s.units() / pieces);
    s.state_slots = std::min(pieces, 3);
    Slots slots(s);
    std::vector<Task> tasks;
    for (int step = 0; step < 3; ++step) append(tasks, build_update(s, slots));
    expect_waits(s, tasks, true);
    std::set<int> fetched, updated;  // pieces
    int updates = 0;
    for (const Task& task : tasks) {
      updates += task.kind == Kind::update;
      if (task.kind == Kind::fetch) {
        EXPECT_TRUE(fetched.insert(task.part).second);
      } else if (task.kind == Kind::update) {
        EXPECT_TRUE(fetched.contains(task.part) && updated.insert(task.part).second);
      } else if (task.kind == Kind::offload) {
        EXPECT_TRUE(fetched.erase(task.part) == 1 && updated.erase(task.part) == 1);
      }
    }
    EXPECT_EQ(updates, 3 * pieces);
  }
}

// Runs two pairs of micro-batches and one without a partner, in every shape. With bits 5 and 6 some blocks are dense.
TEST(Waits, LanesRunInOrderAndReduceEachUnitOnce) {
  int shapes = 0;
  for (int bits = 0; bits < 1 << 7; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    for (const int blocks : {1, 2, 3, 6}) {
      StepShape s = shape_of_lanes(blocks, bit(0));
      s.resharded = bit(1);
      s.sharded_gradients = bit(2);
      s.recomputed_blocks = bit(3) ? (blocks + 1) / 2 : 0;
      const StepShape::BlockParts mixture = s.block_parts.front(), dense = shape_of(blocks, bit(0)).block_parts.front();
      s.block_parts.clear();
      for (int block = 0; block < blocks; ++block) s.block_parts.push_back(bit(5 + block % 2) ? dense : mixture);
      for (StepShape::BlockParts& parts : s.block_parts) parts.forward[1].beside = bit(4) ? Beside::gather : Beside::nothing;
      SCOPED_TRACE(concat(blocks, " blocks, bits ", bits));
      Slots slots(s);
      const std::vector<Visit> visits = visits_of({}, 0, 5, 2);
      const std::vector<Task> tasks = build_visits(s, slots, visits, 0, visits.size(), 5);
      expect_waits(s, tasks, blocks == 2);
      std::set<int> open;
      std::vector<int> reduced(s.two_copies.size(), 0);
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        const Task& task = tasks[i];
        if (task.kind == Kind::reduce) ++reduced[static_cast<std::size_t>(task.index)];
        if (task.kind == Kind::open && task.use != Use::gradients) {
          for (const int other : open) {
            if (other == task.index) continue;
            const int a = other, b = task.index;
            EXPECT_TRUE(!s.resharded || s.weight_slot(a) != s.weight_slot(b)) << "weights of " << a << " and " << b;
            const bool writes = s.sharded_gradients && writes_gradients(task.use);
            EXPECT_TRUE(!writes || s.gradient_slot(a) != s.gradient_slot(b)) << "gradients of " << a << " and " << b;
          }
        }
        if (task.kind == Kind::open) open.insert(task.index);
        if (task.kind == Kind::close) open.erase(task.index);
        EXPECT_TRUE(!is_part(task.kind) || open.contains(s.first_block + task.index)) << i;
      }
      for (std::size_t unit = 0; unit < reduced.size(); ++unit) {
        EXPECT_EQ(reduced[unit], s.sharded_gradients ? 3 : 1) << "unit " << unit;
      }
      EXPECT_EQ(slots.pending, -1);
      ++shapes;
    }
  }
  EXPECT_EQ(shapes, 512);
}

}  // namespace
}  // namespace octet::parallel
