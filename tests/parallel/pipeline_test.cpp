// The order of a pipeline's passes. An independent model of the stages runs them: each stage in its order, with room for one message on
// its way in each direction of each link.
#include "octet/parallel/pipeline.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

std::string text_of(const std::vector<Visit>& visits) {
  std::string text;
  for (const Visit& v : visits) text += concat(text.empty() ? "" : " ", v.backward ? "B" : "F", v.micro_batch);
  return text;
}

TEST(Pipeline, RunsOneForwardAndOneBackwardInTurn) {
  EXPECT_EQ(text_of(visits_of({.count = 4}, 1, 6)), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(text_of(visits_of({.count = 4}, 3, 2)), "F0 B0 F1 B1");
  EXPECT_EQ(text_of(visits_of({.count = 4}, 0, 2)), "F0 F1 B0 B1");
  EXPECT_EQ(text_of(visits_of({}, 0, 2)), "F0 B0 F1 B1");
}

TEST(Pipeline, RunsMicroBatchesOfTwoLanesTogether) {
  const std::vector<Visit> visits = visits_of({}, 0, 5, 2);
  EXPECT_EQ(text_of(visits), "F0 F1 B0 B1 F2 F3 B2 B3 F4 B4");
  EXPECT_EQ(in_flight(visits).passes, 2);
  EXPECT_EQ(in_flight(visits).micro_batches, 2);
}

TEST(Pipeline, HoldsAsManyPassesAsStagesFollow) {
  for (int stage = 0; stage < 4; ++stage) {
    const InFlight most = in_flight(visits_of({.count = 4}, stage, 16));
    EXPECT_EQ(most.passes, 4 - stage);
    EXPECT_EQ(most.micro_batches, 4 - stage);
  }
  // Megatron-LM's count of warm-up passes, and the one that runs before the first backward pass.
  EXPECT_EQ(in_flight(visits_of({.count = 4, .chunks = 2}, 1, 16)).passes, 2 * 2 + 4 + 1);
}

// A message is on its way until the receiver has taken it. The sender has memory for one, the receiver for another one.
class Simulated {
 public:
  Simulated(Stages stages, int micro_batches) : stages_(stages) {
    for (int stage = 0; stage < stages.count; ++stage) {
      const std::vector<Visit> visits = visits_of(stages, stage, micro_batches);
      left_.emplace_back(visits.begin(), visits.end());
    }
  }
  // Returns how many passes could run until no stage went on.
  std::size_t run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < stages_.count; ++stage) {
        while (!left_[static_cast<std::size_t>(stage)].empty() && step(stage)) moved = true;
      }
    }
    return done_;
  }
  void expect_each_once(int micro_batches) const {
    EXPECT_EQ(seen_.size(), static_cast<std::size_t>(2 * micro_batches * stages_.count * stages_.chunks));
  }

 private:
  struct Sent {
    int micro_batch, chunk;  // the chunk of the model that reads it
    bool operator==(const Sent&) const = default;
  };
  using Route = std::tuple<bool, int, int>;  // backward, from, to

  bool step(int stage) {
    const Visit visit = left_[static_cast<std::size_t>(stage)].front();
    const int chunks = stages_.count * stages_.chunks, chunk = visit.chunk * stages_.count + stage;
    const int from = chunk + (visit.backward ? 1 : -1), to = chunk + (visit.backward ? -1 : 1);
    const auto route = [&](int a, int b) { return Route{visit.backward, a % stages_.count, b % stages_.count}; };
    const bool takes = from >= 0 && from < chunks, gives = to >= 0 && to < chunks;
    if (takes) {
      auto& queue = on_the_way_[route(from, chunk)];
      if (queue.empty()) return false;
      EXPECT_EQ(queue.front(), (Sent{visit.micro_batch, chunk})) << "messages arrive in another order than they are taken";
    }
    if (gives && on_the_way_[route(chunk, to)].size() >= 2) return false;
    if (visit.backward) {
      EXPECT_TRUE(seen_.count({false, visit.micro_batch, chunk})) << "backward before forward";
    }
    if (takes) on_the_way_[route(from, chunk)].pop_front();
    if (gives) on_the_way_[route(chunk, to)].push_back({visit.micro_batch, to});
    EXPECT_TRUE(seen_.insert({visit.backward, visit.micro_batch, chunk}).second);
    left_[static_cast<std::size_t>(stage)].pop_front();
    ++done_;
    return true;
  }

  Stages stages_;
  std::vector<std::deque<Visit>> left_;
  std::map<Route, std::deque<Sent>> on_the_way_;
  std::set<std::tuple<bool, int, int>> seen_;
  std::size_t done_ = 0;
};

TEST(Pipeline, EndsWhereverItsStagesWaitForEachOther) {
  int pipelines = 0;
  for (int count = 1; count <= 6; ++count) {
    for (int chunks = 1; chunks <= (count > 1 ? 4 : 1); ++chunks) {
      for (int micro_batches = 1; micro_batches <= 13; ++micro_batches, ++pipelines) {
        SCOPED_TRACE(concat(count, " stages of ", chunks, " chunks, ", micro_batches, " micro-batches"));
        Simulated stages({.count = count, .chunks = chunks}, micro_batches);
        EXPECT_EQ(stages.run(), static_cast<std::size_t>(2 * micro_batches * count * chunks)) << "stages wait for each other";
        stages.expect_each_once(micro_batches);
      }
    }
  }
  EXPECT_EQ(pipelines, 13 + 5 * 4 * 13);
}

TEST(Pipeline, GivesChunksTheirBlocks) {
  const auto counts = [](int blocks, Stages stages) {
    std::vector<int> result;
    for (int chunk = 0, next = 0; chunk < stages.count * stages.chunks; ++chunk) {
      const BlockRange range = blocks_of(blocks, stages, chunk);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      result.push_back(range.count());
      for (int block = range.begin; block < range.end; ++block) {
        EXPECT_EQ(stage_of_block(blocks, stages, block), chunk % stages.count);
      }
    }
    EXPECT_EQ(blocks_of(blocks, stages, stages.count * stages.chunks - 1).end, blocks);
    return result;
  };
  EXPECT_EQ(counts(32, {.count = 4}), (std::vector<int>{8, 8, 8, 8}));
  EXPECT_EQ(counts(6, {.count = 4}), (std::vector<int>{1, 2, 2, 1}));
  EXPECT_EQ(counts(8, {.count = 2, .chunks = 2}), (std::vector<int>{2, 2, 2, 2}));
  // Llama 3 405B on 16 stages of 8 chunks: the first chunk has the embedding alone, and the last one the head.
  std::vector<int> llama(128, 1);
  llama.front() = llama.back() = 0;
  EXPECT_EQ(counts(126, {.count = 16, .chunks = 8}), llama);
  // A head that takes as long as three blocks: the last stage works for 6 + 3, the others for at most 9.
  EXPECT_EQ(counts(32, {.count = 4, .head_blocks = 3}), (std::vector<int>{8, 9, 9, 6}));
  EXPECT_EQ(counts(32, {.count = 2, .head_blocks = 3}), (std::vector<int>{17, 15}));
  EXPECT_EQ(counts(32, {.count = 4, .chunks = 2, .head_blocks = 3}), (std::vector<int>{4, 5, 5, 4, 4, 4, 4, 2}));
  EXPECT_EQ(counts(126, {.count = 16, .chunks = 8, .head_blocks = 1}), llama);
  // Every stage keeps a block, and one stage all of them.
  EXPECT_EQ(counts(8, {.count = 4, .head_blocks = 9}), (std::vector<int>{2, 3, 2, 1}));
  EXPECT_EQ(counts(8, {.head_blocks = 9}), (std::vector<int>{8}));
}

// No other division in which the other chunks differ by at most one block has a less busy busiest stage.
TEST(Pipeline, BalancesTheHead) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int blocks = stages; blocks <= 48; ++blocks) {
      for (int head = 0; head <= 12; ++head) {
        const auto busiest = [&](Stages of) {
          int most = 0;
          for (int s = 0; s < stages; ++s) most = std::max(most, blocks_of(blocks, of, s).count() + (s + 1 == stages ? head : 0));
          return most;
        };
        int least = blocks + head;
        for (int last = 1; last <= blocks - (stages - 1); ++last)
          least = std::min(least, std::max(last + head, (blocks - last + stages - 2) / (stages - 1)));
        EXPECT_EQ(busiest({.count = stages, .head_blocks = head}), least)
            << stages << " stages, " << blocks << " blocks, head " << head;
      }
    }
  }
}

}  // namespace
}  // namespace octet::parallel
