// The lists of tasks: their order, and what they look like. waits_test.cpp tests what the tasks wait for.
#include "octet/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "octet/base/require.h"
#include "octet/plan/schedule_gaps.h"
#include "octet/plan/schedule_text.h"
#include "support/step_shapes.h"

namespace octet::parallel {
namespace {

using testing::build_micro_batch;
using testing::shape_of;
using testing::shape_of_lanes;

TEST(Schedule, NeighboursLieInDifferentSlots) {
  StepShape s = shape_of(4, false);
  s.resharded = true;
  std::vector<int> slots;
  for (int unit = 0; unit < s.units(); ++unit) slots.push_back(s.weight_slot(unit));
  EXPECT_EQ(slots, (std::vector<int>{2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(s.gradient_slot(4), 4) << "kept";
}

std::string text_of(const StepShape& shape, const std::vector<Task>& tasks) {
  std::vector<TimedTask> timed;
  for (const Task& task : tasks) timed.push_back({task});
  std::string text;
  std::istringstream lines(plan::text_of(shape, timed));
  for (std::string line; std::getline(lines, line);) text += line.substr(0, 5) + line.substr(27) + "\n";  // without times
  return text;
}

TEST(Schedule, ReadsFromTopToBottom) {
  StepShape s = shape_of(2, false);
  s.sharded = s.resharded = s.reduced = s.sharded_gradients = true;
  Slots slots(s);
  EXPECT_EQ(text_of(s, build_micro_batch(s, slots, true)),
            "    0  compute       load\n"
            "    1  communication gather embedding\n"
            "    2  compute       open embedding  waits for 1 gather embedding\n"
            "    3  communication gather block 0\n"
            "    4  compute       embed\n"
            "    5  compute       close embedding\n"
            "    6  compute       open block 0  waits for 3 gather block 0\n"
            "    7  communication gather block 1\n"
            "    8  compute       block 0 forward: qkv\n"
            "    9  compute       block 0 forward: attention\n"
            "   10  compute       block 0 forward: feed\n"
            "   11  compute       close block 0\n"
            "   12  compute       open block 1  waits for 7 gather block 1\n"
            "   13  communication gather head  waits for 5 close embedding\n"
            "   14  compute       block 1 forward: qkv\n"
            "   15  compute       block 1 forward: attention\n"
            "   16  compute       block 1 forward: feed\n"
            "   17  compute       close block 1\n"
            "   18  compute       open head  waits for 13 gather head\n"
            "   19  compute       head: loss and its gradient\n"
            "   20  compute       close head\n"
            "   21  compute       open block 1\n"
            "   22  compute       block 1 backward: feed\n"
            "   23  communication reduce head  waits for all of compute above\n"
            "   24  compute       block 1 backward: attention\n"
            "   25  compute       block 1 backward: qkv\n"
            "   26  compute       close block 1\n"
            "   27  compute       open block 0\n"
            "   28  compute       block 0 backward: feed\n"
            "   29  communication reduce block 1  waits for all of compute above\n"
            "   30  compute       block 0 backward: attention\n"
            "   31  compute       block 0 backward: qkv\n"
            "   32  compute       close block 0\n"
            "   33  compute       open embedding  waits for 23 reduce head\n"
            "   34  compute       embedding backward\n"
            "   35  communication reduce block 0  waits for 32 close block 0\n"
            "   36  compute       close embedding\n"
            "   37  communication reduce embedding  waits for all of compute above\n");
}

// The exchange of keys overlaps the feed-forward layer, and the sums of their gradients overlap output_wgrad.
TEST(Schedule, ExchangesKeysBesideTheComputation) {
  StepShape s = shape_of(2, false);
  testing::add_context(s);
  s.resharded = s.sharded_gradients = true;
  Slots slots(s);
  const std::string text = text_of(s, build_micro_batch(s, slots, true));
  const std::string begin =
      "   23  compute       open block 1\n"
      "   24  communication block 1 backward: keys  waits for all of compute above\n"
      "   25  compute       block 1 backward: feed\n"
      "   26  communication reduce head  waits for all of compute above\n"
      "   27  compute       block 1 backward: attention\n"
      "   28  compute       block 1 backward: attention_rest  waits for 24 block 1 backward: keys\n"
      "   29  context       block 1 backward: key_sums  waits for 28 block 1 backward: attention_rest\n"
      "   30  compute       block 1 backward: output_wgrad\n"
      "   31  compute       block 1 backward: qkv  waits for 29 block 1 backward: key_sums\n"
      "   32  compute       close block 1\n"
      "   33  compute       open block 0\n";
  EXPECT_NE(text.find(begin), std::string::npos) << text;
}

StepShape sharded_shape() {
  StepShape s = shape_of(2, false);
  s.sharded = s.resharded = s.reduced = s.sharded_gradients = true;
  s.updates = update_ranges(s);
  return s;
}

TEST(Schedule, EndsAStepFromTopToBottom) {
  const StepShape s = sharded_shape();
  Slots slots(s);
  build_micro_batch(s, slots, true);
  EXPECT_EQ(text_of(s, build_update(s, slots)),
            "    0  compute       squares of head\n"
            "    1  compute       squares of embedding to block 1  waits for embedding reduced before\n"
            "    2  communication sums over ranks  waits for 1 squares of embedding to block 1\n"
            "    3  compute       scales  waits for 2 sums over ranks\n"
            "    4  compute       update embedding to block 1\n"
            "    5  communication cast embedding to block 1  waits for 4 update embedding to block 1\n"
            "    6  communication gather embedding\n"
            "    7  communication gather block 0\n"
            "    8  communication gather block 1\n"
            "    9  compute       update head\n"
            "   10  communication cast head  waits for 9 update head\n");
}

// Three slots for four pieces: the first three are fetched beside the last backward passes.
TEST(Schedule, FetchesPiecesOfStatesAhead) {
  StepShape s = shape_of(2, false);
  s.updates = update_ranges(s);
  s.pieces = {0, 1, 1, 3};
  s.state_slots = 3;
  Slots slots(s);
  EXPECT_EQ(text_of(s, build_update(s, slots)),
            "    0  fetch         fetch embedding states 0\n"
            "    1  fetch         fetch block 0 states 0\n"
            "    2  fetch         fetch block 0 states 1\n"
            "    3  compute       squares of embedding to head\n"
            "    4  compute       sums over ranks\n"
            "    5  compute       scales\n"
            "    6  compute       update embedding states 0  waits for 0 fetch embedding states 0\n"
            "    7  offload       offload embedding states 0  waits for 6 update embedding states 0\n"
            "    8  fetch         fetch head states 0  waits for 7 offload embedding states 0\n"
            "    9  compute       update block 0 states 0  waits for 1 fetch block 0 states 0\n"
            "   10  offload       offload block 0 states 0  waits for 9 update block 0 states 0\n"
            "   11  compute       update block 0 states 1  waits for 2 fetch block 0 states 1\n"
            "   12  offload       offload block 0 states 1  waits for 11 update block 0 states 1\n"
            "   13  compute       update head states 0  waits for 8 fetch head states 0\n"
            "   14  offload       offload head states 0  waits for 13 update head states 0\n"
            "   15  compute       cast embedding to head\n");
}

// The first pass of a step through a block or through the head overwrites all its gradients. In a later micro-batch, the first
// pass since the unit was opened overwrites those in slots. All other passes add.
void expect_gradients_begin_once(const StepShape& s, const std::vector<Task>& tasks) {
  std::map<int, int> owner;  // of each unit that is open: the micro-batch that was first
  for (const Task& task : tasks) {
    if (task.kind == Kind::open) owner.erase(task.index);
    if (task.kind != Kind::head && task.kind != Kind::backward) continue;
    const int unit = task.kind == Kind::head ? s.head : s.first_block + task.index;
    const bool first = owner.emplace(unit, task.micro_batch).first->second == task.micro_batch;
    const Overwrites expected = !first ? Overwrites::none : task.micro_batch == 0 ? Overwrites::all : Overwrites::slots;
    EXPECT_EQ(task.overwrites, expected) << "unit " << unit << ", micro-batch " << task.micro_batch;
  }
}

TEST(Schedule, GradientsBeginInTheFirstPass) {
  for (const int lanes : {1, 2}) {
    StepShape s = shape_of_lanes(3, false);
    s.lanes = lanes;
    Slots slots(s);
    const std::vector<Visit> visits = visits_of({}, 0, 5, lanes);
    expect_gradients_begin_once(s, build_visits(s, slots, visits, 0, visits.size(), 5));
  }
  for (const Stages stages : {Stages{2, 1}, Stages{2, 2}}) {
    for (int stage = 0; stage < 2; ++stage) {
      StepShape s = shape_of(6, false);
      s.sharded = s.reduced = true;
      s.stages = stages;
      s.stage = stage;
      Slots slots(s);
      const std::vector<Visit> visits = visits_of(stages, stage, 4);
      expect_gradients_begin_once(s, build_visits(s, slots, visits, 0, visits.size(), 4));
    }
  }
}

// While the rows of a lane are under way, the other lane computes. A unit is open as long as a lane uses it.
TEST(Schedule, LanesTakeTurns) {
  StepShape s = shape_of_lanes(3, false);
  s.resharded = true;
  Slots slots(s);
  const std::vector<Visit> visits = visits_of({}, 0, 2, 2);
  const std::string begin =
      "    0  compute       load m0\n"
      "    1  communication gather embedding\n"
      "    2  compute       open embedding  waits for 1 gather embedding\n"
      "    3  communication gather block 0\n"
      "    4  compute       embed m0\n"
      "    5  compute       open block 0  waits for 3 gather block 0\n"
      "    6  communication gather block 1\n"
      "    7  compute       block 0 m0 forward: qkv\n"
      "    8  compute       block 0 m0 forward: attention\n"
      "    9  compute       block 0 m0 forward: route\n"
      "   10  compute       load m1\n"
      "   11  compute       embed m1\n"
      "   12  compute       close embedding\n"
      "   13  compute       block 0 m1 forward: qkv\n"
      "   14  compute       block 0 m1 forward: attention\n"
      "   15  compute       block 0 m1 forward: route\n"
      "   16  experts       block 0 m0 forward: dispatch  waits for 9 block 0 m0 forward: route\n"
      "   17  compute       block 0 m0 forward: experts  waits for 16 block 0 m0 forward: dispatch\n"
      "   18  experts       block 0 m1 forward: dispatch  waits for 15 block 0 m1 forward: route\n"
      "   19  compute       block 0 m1 forward: experts  waits for 18 block 0 m1 forward: dispatch\n"
      "   20  experts       block 0 m0 forward: collect  waits for 17 block 0 m0 forward: experts\n"
      "   21  compute       block 0 m0 forward: combine  waits for 20 block 0 m0 forward: collect\n"
      "   22  compute       open block 1  waits for 6 gather block 1\n"
      "   23  compute       block 1 m0 forward: qkv\n"
      "   24  compute       block 1 m0 forward: attention\n"
      "   25  compute       block 1 m0 forward: route\n"
      "   26  experts       block 0 m1 forward: collect  waits for 19 block 0 m1 forward: experts\n"
      "   27  compute       block 0 m1 forward: combine  waits for 26 block 0 m1 forward: collect\n"
      "   28  compute       close block 0\n"
      "   29  communication gather block 2  waits for 28 close block 0\n"
      "   30  compute       block 1 m1 forward: qkv\n"
      "   31  compute       block 1 m1 forward: attention\n"
      "   32  compute       block 1 m1 forward: route\n"
      "   33  experts       block 1 m0 forward: dispatch  waits for 25 block 1 m0 forward: route\n"
      "   34  compute       block 1 m0 forward: experts  waits for 33 block 1 m0 forward: dispatch\n";
  EXPECT_EQ(text_of(s, build_visits(s, slots, visits, 0, 2, 2)).substr(0, begin.size()), begin);
}

// A list shows both ends of the blocks, and a stage's list both ends of each of its chunks.
TEST(Schedule, LeavesOutBlocksOfLongChunks) {
  const auto left_out = [](const StepShape& s, int micro_batches) {
    Slots slots(s);
    const std::vector<Visit> visits = visits_of(s.stages, s.stage, micro_batches);
    std::vector<TimedTask> tasks;
    for (const Task& task : build_visits(s, slots, visits, 0, visits.size(), micro_batches)) tasks.push_back({task});
    std::vector<std::string> result;
    for (const plan::Gap& gap : plan::gaps_of(s, tasks)) result.push_back(gap.of);
    return result;
  };
  StepShape s = shape_of(24, false);
  EXPECT_EQ(left_out(s, 1), (std::vector<std::string>{"blocks 2 to 21", "blocks 2 to 21"}));
  s.stages = {.count = 2, .chunks = 2};
  s.stage = 1;
  const std::vector<std::string> result = left_out(s, 2);
  EXPECT_EQ(std::count(result.begin(), result.end(), "blocks 8 to 9"), 4) << ::testing::PrintToString(result);
  EXPECT_EQ(std::count(result.begin(), result.end(), "blocks 20 to 21"), 4) << ::testing::PrintToString(result);
  EXPECT_EQ(result.size(), 8u);
}

// The names in a line and the numbers that a picture draws arrows from are those of the same tasks.
TEST(Schedule, NamesWhatATaskWaitsFor) {
  StepShape s = shape_of(4, false);
  s.sharded = s.resharded = s.reduced = s.sharded_gradients = true;
  Slots slots(s);
  std::vector<TimedTask> tasks;
  for (const Task& task : build_micro_batch(s, slots, true)) tasks.push_back({task});
  std::size_t waits = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (const std::size_t before : plan::waits_for(tasks, i)) {
      ASSERT_LT(before, i);
      ++waits;
      if (tasks[i].task.after_compute && before == plan::waits_for(tasks, i).back()) {
        EXPECT_EQ(tasks[before].task.stream, StreamId::compute) << i;
      } else {
        EXPECT_NE(tasks[before].task.stream, tasks[i].task.stream) << i;
        EXPECT_NE(plan::waits_of(s, tasks, i).find(concat(before, " ", plan::name_of(s, tasks[before].task))), std::string::npos)
            << i;
      }
    }
  }
  EXPECT_GT(waits, 10u);
}

// One rank gathers and reduces nothing; it only ends gradients that no product has begun.
TEST(Schedule, OfOneRankComputesAlone) {
  const StepShape s = shape_of(3, false);
  Slots slots(s);
  for (const Task& task : build_micro_batch(s, slots, true)) {
    EXPECT_EQ(task.stream, StreamId::compute);
    EXPECT_TRUE(task.kind == Kind::close || task.kind > Kind::reduce);
  }
}

// Hosts of pipeline stages that wait in every task of the computation until all messages that they have enqueued are through, as CUDA
// does when it loads a kernel. A message is through once both ends are enqueued: the n-th send over a link meets its n-th receive.
class WaitingHosts {
 public:
  // `micro_batches` of training, or an evaluation if there are none.
  WaitingHosts(Stages stages, int micro_batches) {
    for (int stage = 0; stage < stages.count; ++stage) {
      StepShape s = shape_of(24, false);  // at least one block in each chunk
      s.stages = stages;
      s.stage = stage;
      Slots slots(s);
      const std::vector<Visit> visits = visits_of(stages, stage, std::max(1, micro_batches));
      tasks_.push_back(micro_batches > 0 ? build_visits(s, slots, visits, 0, visits.size(), micro_batches)
                                         : build_evaluation(s, slots));
    }
    at_.resize(tasks_.size());
    enqueued_.resize(tasks_.size());
  }
  // Whether all stages reach their ends.
  bool end() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < tasks_.size(); ++stage) {
        for (; at_[stage] < tasks_[stage].size() && passes(stage, tasks_[stage][at_[stage]]); ++at_[stage]) moved = true;
      }
    }
    for (std::size_t stage = 0; stage < tasks_.size(); ++stage) {
      if (at_[stage] < tasks_[stage].size()) return false;
    }
    return true;
  }

 private:
  // By kind of message: how many receives and sends a stage has enqueued.
  struct Enqueued {
    std::array<int, kMessages> received = {}, sent = {};
  };
  bool passes(std::size_t stage, const Task& task) {
    if (task.kind == Kind::receive) ++enqueued_[stage].received[static_cast<std::size_t>(task.index)];
    if (task.kind == Kind::send) ++enqueued_[stage].sent[static_cast<std::size_t>(task.index)];
    if (task.stream != StreamId::compute || task.kind == Kind::take || task.kind == Kind::give) return true;
    const std::size_t count = tasks_.size(), before = (stage + count - 1) % count, behind = (stage + 1) % count;
    for (std::size_t m = 0; m < kMessages; ++m) {
      const bool forward = static_cast<Message>(m) == Message::activations;
      const Enqueued& source = enqueued_[forward ? before : behind];
      const Enqueued& target = enqueued_[forward ? behind : before];
      if (enqueued_[stage].received[m] > source.sent[m] || enqueued_[stage].sent[m] > target.received[m]) return false;
    }
    return true;
  }

  std::vector<std::vector<Task>> tasks_;
  std::vector<std::size_t> at_;
  std::vector<Enqueued> enqueued_;
};

TEST(Schedule, StagesOf1F1BEndIfTheirHostsWaitInEveryPass) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (const int chunks : {2, 3}) EXPECT_TRUE(WaitingHosts({.count = stages, .chunks = chunks}, 0).end()) << "an evaluation";
    for (int micro_batches = 0; micro_batches <= 20; ++micro_batches) {
      EXPECT_TRUE(WaitingHosts({.count = stages}, micro_batches).end()) << stages << " stages, " << micro_batches << " micro-batches";
    }
  }
  // Interleaved stages can wait for ever, so they load their kernels before the first step (train::Engine::rehearse).
  EXPECT_FALSE(WaitingHosts({.count = 2, .chunks = 2}, 4).end());
}

}  // namespace
}  // namespace octet::parallel
