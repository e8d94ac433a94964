#include "octet/app/roster.h"

#include <gtest/gtest.h>

namespace octet::app {
namespace {

using Nodes = std::vector<int>;

TEST(Roster, TakesTheLowestAndKeepsThoseThatRan) {
  const Roster roster;
  EXPECT_EQ(roster.choose({0, 1, 2, 3, 4}, {}, 3), (Nodes{0, 1, 2}));
  EXPECT_EQ(roster.choose({0, 1, 2, 4}, {0, 2, 4}, 3), (Nodes{0, 2, 4})) << "node 1 came back as a spare";
  EXPECT_EQ(roster.choose({0, 3, 4}, {0, 1, 2}, 3), (Nodes{0, 3, 4}));
  EXPECT_EQ(roster.choose({0, 2, 3}, {0, 1, 2}, 3), (Nodes{0, 3, 2})) << "node 2 keeps its ranks";
  EXPECT_EQ(roster.choose({1, 2, 3}, {0, 1, 2}, 3), (Nodes{3, 1, 2}));
  EXPECT_EQ(roster.choose({0, 2}, {0, 1, 2}, 3), (Nodes{0, 2})) << "too few to keep its ranks";
  EXPECT_EQ(roster.choose({3, 4}, {0, 1, 2}, 3), (Nodes{3, 4}));
}

TEST(Roster, PutsSuspectsLast) {
  Roster roster;
  roster.blame(1);
  EXPECT_FALSE(roster.is_suspect(1));
  roster.blame(-1);
  roster.blame(1);
  EXPECT_TRUE(roster.is_suspect(1));
  EXPECT_EQ(roster.choose({0, 1, 2, 3}, {0, 1, 2}, 3), (Nodes{0, 3, 2}));
  EXPECT_EQ(roster.choose({0, 1, 2}, {0, 1, 2}, 3), (Nodes{0, 1, 2})) << "rather than have too few";
  roster.blame(0);
  EXPECT_FALSE(roster.is_suspect(1)) << "one of the last three";
}

// Two hosts that cannot reach each other fail every attempt that has both. Without a spare one of them must go.
TEST(Roster, LeavesOutASuspectIfTheOthersSuffice) {
  Roster roster;
  const auto two = [](int number) { return number >= 2; };
  const auto chosen = [&](const Nodes& here, const Nodes& ran_before) {
    roster.leave_out_suspect(here, ran_before, two);
    return roster.choose(here, ran_before, 3);
  };
  roster.blame(2);
  EXPECT_EQ(chosen({0, 1, 2}, {0, 1, 2}), (Nodes{0, 1, 2})) << "one failure";
  roster.blame(2);
  EXPECT_EQ(chosen({0, 2}, {0, 1, 2}), (Nodes{0, 2})) << "one node alone does not suffice";
  EXPECT_EQ(chosen({0, 1, 2}, {0, 1, 2}), (Nodes{0, 1}));
  EXPECT_TRUE(roster.is_left_out(2));
  EXPECT_EQ(chosen({0, 1, 2}, {0, 1}), (Nodes{0, 1})) << "it stays out";
  EXPECT_EQ(chosen({1, 2}, {0, 1}), (Nodes{2, 1})) << "node 0 is lost";
  EXPECT_EQ(chosen({0, 1, 2}, {2, 1}), (Nodes{0, 1}));
  EXPECT_EQ(chosen({0, 1, 2, 3}, {0, 1}), (Nodes{0, 1, 3})) << "a spare takes its place";
  roster.blame(3);
  EXPECT_EQ(chosen({0, 1, 2}, {0, 1, 3}), (Nodes{0, 1})) << "the spare is lost";
  roster.blame(-1);
  EXPECT_EQ(chosen({0, 1, 2}, {0, 1}), (Nodes{0, 1, 2})) << "one of three";
}

TEST(Roster, TakesASuspectBackThatComesAnew) {
  Roster roster;
  const auto any = [](int) { return true; };
  roster.blame(1);
  roster.blame(1);
  roster.leave_out_suspect({0, 1}, {0, 1}, any);
  EXPECT_TRUE(roster.is_left_out(1));
  roster.take_back(0);
  EXPECT_TRUE(roster.is_left_out(1));
  roster.take_back(1);
  EXPECT_FALSE(roster.is_left_out(1));
  roster.leave_out_suspect({0, 1}, {0}, any);
  EXPECT_EQ(roster.choose({0, 1}, {0}, 2), (Nodes{0, 1}));
  roster.leave_out_suspect({0, 1}, {0, 1}, any);
  EXPECT_FALSE(roster.is_left_out(0));
  EXPECT_TRUE(roster.is_left_out(1)) << "it has run again, and is to blame again";
}

TEST(Roster, PutsSlowNodesLast) {
  Roster roster;
  roster.set_slow(0, true);
  EXPECT_EQ(roster.choose({0, 1, 2}, {0, 1}, 2), (Nodes{2, 1}));
  EXPECT_EQ(roster.choose({0, 1}, {0, 1}, 2), (Nodes{0, 1})) << "rather than have too few";
  EXPECT_EQ(roster.unfit(), 0);
  roster.set_slow(0, false);
  EXPECT_EQ(roster.choose({0, 1, 2}, {0, 1}, 2), (Nodes{0, 1}));
}

TEST(Roster, LeavesOutTheUnfitEvenIfTooFewRemain) {
  Roster roster;
  roster.set_unfit(1, true);
  roster.set_unfit(1, true);
  EXPECT_EQ(roster.unfit(), 1);
  EXPECT_EQ(roster.choose({0, 1, 2}, {0, 1}, 2), (Nodes{0, 2}));
  EXPECT_EQ(roster.choose({1}, {0, 1}, 2), Nodes{});
  roster.set_unfit(1, false);
  EXPECT_EQ(roster.choose({0, 1, 2}, {0, 1}, 2), (Nodes{0, 1}));
}

// Before its first step rank 0 reports the checkpoint that it goes on from.
TEST(NextSave, ComesAfterTheChangeIsWantedAndAfterTheFirstStep) {
  telemetry::RankPage page;
  NextSave next;
  EXPECT_FALSE(next.has_come(true, page));
  page.saved_step = 40;
  EXPECT_FALSE(next.has_come(true, page)) << "rank 0 has loaded it";
  page.finish_step(41);
  EXPECT_FALSE(next.has_come(true, page));
  page.saved_step = 50;
  EXPECT_TRUE(next.has_come(true, page));
  EXPECT_FALSE(next.has_come(false, page));
  EXPECT_FALSE(next.has_come(true, page)) << "it waits anew";
  page.saved_step = 60;
  EXPECT_TRUE(next.has_come(true, page));
}

// The ranks that only miss a peer often end before the supervisor of the one that failed has told.
TEST(AttemptVerdict, TheWeightiestReportCounts) {
  AttemptVerdict verdict;
  EXPECT_FALSE(verdict.any());
  verdict.rank_failed(0, 0, "");
  EXPECT_FALSE(verdict.any());
  verdict.rank_failed(0, 78, "rank 0 misses rank 1");
  EXPECT_EQ(verdict.node(), -1);
  verdict.link_broken(3, 1, "node3 and node1 cannot reach each other");
  EXPECT_EQ(verdict.what(), "node3 and node1 cannot reach each other");
  verdict.node_lost(2, "node2 is silent");
  EXPECT_EQ(verdict.code(), 78);
  EXPECT_EQ(verdict.node(), 2);
  verdict.rank_failed(1, 137, "rank 1 was killed");
  EXPECT_EQ(verdict.code(), 137);
  EXPECT_EQ(verdict.node(), 1);
  verdict.node_lost(0, "node0 is silent");
  verdict.rank_failed(0, 139, "rank 0 crashed");
  EXPECT_EQ(verdict.what(), "rank 1 was killed") << "the first of equals";
  verdict.rank_failed(3, 76, "rank 3 ended with code 76", Cause::storage);
  EXPECT_EQ(verdict.code(), 76) << "the others cannot go on without what rank 3 reads";
  EXPECT_EQ(verdict.node(), 3);
  EXPECT_EQ(verdict.cause(), Cause::storage);
  verdict.rank_failed(1, 76, "rank 1 ended with code 76", Cause::storage);
  EXPECT_EQ(verdict.node(), -1) << "what two nodes cannot read is the fault of neither";
  verdict.stalled(2, "no rank has moved");
  verdict.rank_failed(2, 137, "rank 2 was killed");
  EXPECT_EQ(verdict.code(), 80) << "after a stall all ranks are killed";
  EXPECT_EQ(verdict.node(), 2);
}

// A rank that misses a peer is reported at once, but its sentence comes when all ranks of its node have ended.
TEST(AttemptVerdict, TakesASentenceThatComesLater) {
  AttemptVerdict verdict;
  verdict.rank_failed(0, 78, "");
  verdict.rank_failed(1, 75, "the run was asked to stop (code 75)");
  EXPECT_EQ(verdict.what(), "") << "another code";
  verdict.rank_failed(0, 78, "rank 0 ended with code 78: rank 1 has been silent for 10 s");
  verdict.rank_failed(2, 78, "rank 2 ended with code 78");
  EXPECT_EQ(verdict.code(), 78);
  EXPECT_EQ(verdict.what(), "rank 0 ended with code 78: rank 1 has been silent for 10 s");
}

// Which end is at fault cannot be seen from one link.
TEST(AttemptVerdict, OfABrokenLinkTheSameEndIsBlamedAgain) {
  AttemptVerdict one, other;
  one.link_broken(1, 3, "");
  other.link_broken(3, 1, "");
  EXPECT_EQ(one.node(), 3);
  EXPECT_EQ(other.node(), 3);
  one.link_broken(3, 1, "");
  one.link_broken(2, 1, "");
  EXPECT_EQ(one.node(), 1) << "it has two broken links";
}

TEST(Shrunk, GivesUpReplicasFirstThenShards) {
  const DataMesh mesh{.replicate = 2, .shard = 4, .rest = 1, .global_batch = 24, .micro_batch = 1};
  const auto data = [&](int ranks) -> std::pair<int, int> {
    const std::optional<DataMesh> smaller = shrunk(mesh, ranks);
    return smaller ? std::pair(smaller->replicate, smaller->shard) : std::pair(0, 0);
  };
  EXPECT_EQ(data(8), std::pair(2, 4));
  EXPECT_EQ(data(7), std::pair(1, 6)) << "7 does not divide 24";
  EXPECT_EQ(data(5), std::pair(1, 4));
  EXPECT_EQ(data(3), std::pair(1, 3));
  EXPECT_EQ(data(0), std::pair(0, 0));
}

TEST(Shrunk, KeepsTheOtherAxes) {
  const DataMesh mesh{.replicate = 1, .shard = 4, .rest = 2, .expert = 2, .global_batch = 8, .micro_batch = 2};
  EXPECT_EQ(shrunk(mesh, 7)->shard, 2) << "3 shards are no multiple of 2 experts' ranks";
  EXPECT_EQ(shrunk(mesh, 7)->ranks(), 4);
  EXPECT_FALSE(shrunk(mesh, 3)) << "2 ranks have one shard, which holds no half of the experts";
}

}  // namespace
}  // namespace octet::app
