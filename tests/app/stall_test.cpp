#include "octet/app/stall.h"

#include <gtest/gtest.h>

namespace octet::app {
namespace {

using telemetry::Exchange;
using telemetry::Phase;
using telemetry::RankPage;

class StallOf : public ::testing::Test {
 protected:
  // A rank that has begun so many exchanges of a group, and waits in the last one or not.
  void set(int rank, const char* group, int begun, bool waits) {
    telemetry::GroupPage& page = pages_.page(rank).group(group);
    for (int i = 0; i < begun; ++i) pages_.page(rank).begin(page, Exchange::all_reduce, 1024);
    page.waits = waits ? 1 : 0;
  }
  telemetry::RankPages pages_{4};
};

TEST_F(StallOf, NamesTheRankThatTheOthersWaitFor) {
  for (const int rank : {0, 2, 3}) set(rank, "shard", 7, true);
  set(1, "shard", 6, false);
  pages_.page(1).enter(Phase::training);
  pages_.page(1).finish_step(12);
  const Stall stall = stall_of(pages_.first(4), 60);
  EXPECT_EQ(stall.behind, std::vector<int>{1});
  EXPECT_EQ(stall.what,
            "no rank has moved for 60 s; rank 1 holds up the others; rank 1: training after step 12, last all_reduce 6 of "
            "`shard` (1.00 KiB); ranks 0, 2 and 3: waits in all_reduce 7 of `shard` (1.00 KiB)");
}

// Rank 3 hangs. Rank 2 waits for it in `tensor`, and has therefore not come to the exchange of `shard` in which 0 and 1 wait.
TEST_F(StallOf, FollowsTheChainToItsEnd) {
  for (const int rank : {0, 1}) {
    set(rank, "tensor", 5, false);
    set(rank, "shard", 3, true);
  }
  set(2, "tensor", 5, true);
  set(2, "shard", 2, false);
  set(3, "tensor", 4, false);
  set(3, "shard", 2, false);
  EXPECT_EQ(stall_of(pages_.first(4), 60).behind, std::vector<int>{3});
}

// Rank 3 hangs inside an exchange that rank 2 has left. Both count as waiting, but rank 3 waits for nobody.
TEST_F(StallOf, ARankThatHangsInsideAnExchangeIsNoVictim) {
  for (const int rank : {0, 1}) {
    set(rank, "tensor", 5, false);
    set(rank, "shard", 3, true);
  }
  set(2, "tensor", 5, true);
  set(2, "shard", 2, false);
  set(3, "tensor", 4, true);
  set(3, "shard", 2, false);
  EXPECT_EQ(stall_of(pages_.first(4), 60).behind, std::vector<int>{3});
}

// Stage 0 holds the embedding, which its ranks exchange, too. On a GPU no host waits, so the numbers alone count.
TEST_F(StallOf, ComparesOnlyRanksOfTheSameGroup) {
  for (int rank = 0; rank < 4; ++rank) {
    set(rank, "shard x context", rank == 0 ? 21 : rank == 1 ? 20 : 16, false);
    pages_.page(rank).group("shard x context").members = rank < 2 ? 1 : 2;
    set(rank, "pipeline", 5, false);
    pages_.page(rank).group("pipeline").members = rank % 2 == 0 ? 3 : 4;
  }
  EXPECT_EQ(stall_of(pages_.first(4), 60).behind, std::vector<int>{1});
}

// A process that stands still may do so in the middle of an exchange in which others wait, too.
TEST_F(StallOf, NamesTheProcessThatDoesNotRun) {
  set(0, "shard", 8, true);
  for (const int rank : {1, 2, 3}) set(rank, "shard", 7, true);
  const std::int64_t now = telemetry::monotonic_ns();
  for (int rank = 0; rank < 4; ++rank) pages_.page(rank).alive_ns = now - (rank == 2 ? 61 : 1) * std::int64_t{1'000'000'000};
  const Stall stall = stall_of(pages_.first(4), 60);
  EXPECT_EQ(stall.behind, std::vector<int>{2});
  EXPECT_EQ(stall.what.substr(0, stall.what.find(": ")),
            "no rank has moved for 60 s; rank 2 is frozen and holds up the others; rank 2");
}

// Its page is there from the moment at which the group was made.
TEST_F(StallOf, NamesTheRankThatHangsBeforeItsFirstExchange) {
  for (const int rank : {0, 1, 2}) set(rank, "shard", 1, true);
  set(3, "shard", 0, false);
  EXPECT_EQ(stall_of(pages_.first(4), 60).behind, std::vector<int>{3});
}

// On a GPU the host enqueues and does not wait.
TEST_F(StallOf, CountsAloneWhereNoHostWaits) {
  for (int rank = 0; rank < 4; ++rank) set(rank, "replicate", rank == 2 ? 40 : 48, false);
  EXPECT_EQ(stall_of(pages_.first(4), 60).behind, std::vector<int>{2});
}

TEST_F(StallOf, BlamesNobodyIfAllWaitInTheSameExchange) {
  for (int rank = 0; rank < 4; ++rank) set(rank, "replicate", 9, true);
  const Stall stall = stall_of(pages_.first(4), 60);
  EXPECT_TRUE(stall.behind.empty());
  EXPECT_EQ(stall.what,
            "no rank has moved for 60 s; all have begun the same exchanges; ranks 0, 1, 2 and 3: waits in all_reduce 9 of "
            "`replicate` (1.00 KiB)");
}

TEST_F(StallOf, DescribesOneRank) {
  pages_.page(0).enter(Phase::evaluating);
  EXPECT_EQ(stall_of(pages_.first(1), 61.5).what, "no rank has moved for 61.5 s; rank 0: evaluating after step 0");
}

class StallWatchTest : public StallOf {
 protected:
  // Lets rank 0 train: its first step ends now, and the next ones have taken `step_s` each.
  void train(int steps, double step_s) {
    RankPage& page = pages_.page(0);
    page.enter(Phase::training);
    page.finish_step(1);
    page.step = page.steps = 1 + steps;
    page.changed_ns = page.first_step_ns + static_cast<std::int64_t>(steps * step_s * 1e9);
  }
  static Clock::time_point at(double s) {
    return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s)));
  }
};

TEST_F(StallWatchTest, TellsOnceAfterTheLimit) {
  train(4, 0.5);
  StallWatch watch(60);
  EXPECT_FALSE(watch.look(pages_.first(4), at(100)));
  EXPECT_FALSE(watch.look(pages_.first(4), at(159)));
  pages_.page(3).mark();
  EXPECT_FALSE(watch.look(pages_.first(4), at(161))) << "rank 3 has moved";
  EXPECT_FALSE(watch.look(pages_.first(4), at(220)));
  EXPECT_TRUE(watch.look(pages_.first(4), at(222)));
  EXPECT_FALSE(watch.look(pages_.first(4), at(400)));
}

TEST_F(StallWatchTest, AllowsTenSteps) {
  train(4, 30);
  StallWatch watch(60);
  EXPECT_FALSE(watch.look(pages_.first(4), at(0)));
  EXPECT_FALSE(watch.look(pages_.first(4), at(299)));
  EXPECT_TRUE(watch.look(pages_.first(4), at(301)));
}

// Rank 0 began at step 100 and has gone back to an older checkpoint.
TEST_F(StallWatchTest, ARollbackBelowTheFirstStepAllowsNoMore) {
  pages_.page(0).start_step = 100;
  train(4, 0.5);
  StallWatch watch(60);
  EXPECT_FALSE(watch.look(pages_.first(4), at(0)));
  EXPECT_TRUE(watch.look(pages_.first(4), at(61)));
}

TEST_F(StallWatchTest, AllowsMoreBeforeTheSecondStepAndWhileItSaves) {
  for (const Phase phase : {Phase::training, Phase::saving, Phase::loading}) {
    if (phase != Phase::training) train(4, 0.1);
    pages_.page(0).phase = phase;
    StallWatch watch(60);
    EXPECT_FALSE(watch.look(pages_.first(4), at(0)));
    EXPECT_FALSE(watch.look(pages_.first(4), at(1799)));
    EXPECT_TRUE(watch.look(pages_.first(4), at(1801)));
  }
}

}  // namespace
}  // namespace octet::app
