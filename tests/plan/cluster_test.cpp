#include "octet/plan/cluster.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

using parallel::Mesh;

// 1 GB/s over NVLink and a quarter of that over the network.
const Gpu kGpu{.name = "G", .nvlink_bytes_per_s = 1e9, .network_bytes_per_s = 0.25e9};

TEST(Span, CountsTheNodesOfAGroup) {
  EXPECT_EQ(span_of({0, 1, 2, 3}, 4), (Span{4, 1, 4}));
  EXPECT_EQ(span_of({0, 4, 8, 12}, 4), (Span{4, 4, 1}));
  EXPECT_EQ(span_of({6, 7, 8, 9}, 4), (Span{4, 2, 2}));
  EXPECT_EQ(span_of({5}, 4), (Span{1, 1, 1}));
}

// The replicas of a hybrid mesh lie in different nodes. The parts of a model or of a sequence lie in neighbouring GPUs.
TEST(Span, OfEveryGroupOfARank) {
  const Mesh mesh({4, 4, 2, 1});
  const parallel::Groups groups = parallel::silent_groups(mesh, 9);
  const Spans spans = spans_of(mesh, groups, 9, 8);
  EXPECT_EQ(find_span(spans, groups.replicas->name()), (Span{4, 4, 1}));
  EXPECT_EQ(find_span(spans, groups.shards->name()), (Span{8, 1, 8}));
  EXPECT_EQ(find_span(spans, groups.context->name()), (Span{2, 1, 2}));
  EXPECT_EQ(find_span(spans, groups.tensor->name()), (Span{1, 1, 1}));
  EXPECT_EQ(find_span(spans_of(mesh, groups, 9, 4), groups.shards->name()), (Span{8, 2, 4}));
  EXPECT_THROW(find_span(spans, "nobody"), Error);
}

TEST(Span, OfRanksThatExchangeTokens) {
  const Mesh mesh({1, 16, 1, 1}, 4);
  const parallel::Groups groups = parallel::silent_groups(mesh, 9);
  const Spans spans = spans_of(mesh, groups, 9, 8);
  EXPECT_EQ(find_span(spans, groups.expert->name()), (Span{4, 1, 4}));
  EXPECT_EQ(find_span(spans, groups.expert_shards().name()), (Span{4, 2, 2}));
  EXPECT_EQ(find_span(spans, groups.shards->name()), (Span{16, 2, 8}));
}

// By hand: nodes of 8 hold the ranks 0-7, 8-15 and 16-23. The groups are 0-5, 6-11, 12-17 and 18-23. The second has 2 ranks in
// the first node, and the third has 2 in the last one.
TEST(Span, OfTheWidestGroupOfAnAxis) {
  using parallel::Axis;
  EXPECT_EQ(widest_span(Mesh({4, 6, 1, 1}), {Axis::shard}, 8), (Span{6, 2, 2}));
  // 0-11 and 12-23: 8 + 4 and 4 + 8.
  EXPECT_EQ(widest_span(Mesh({2, 12, 1, 1}), {Axis::shard}, 8), (Span{12, 2, 4}));
  // Eight groups of 5 ranks. The second is 5-7 in one node and 8-9 in the next; the fourth is 15 alone and 16-19.
  EXPECT_EQ(widest_span(Mesh({8, 5, 1, 1}), {Axis::shard}, 8), (Span{5, 2, 1}));
  // Two nodes of 6: the ranks 4-7 are in both.
  EXPECT_EQ(widest_span(Mesh({1, 3, 1, 4}), {Axis::tensor}, 6), (Span{4, 2, 2}));
  EXPECT_EQ(widest_span(Mesh({1, 4, 1, 4}), {Axis::tensor}, 8), (Span{4, 1, 4}));
  // Tokens go from rank to rank within 0-2, 3-5, 6-8 and 9-11. Rank 8 is in the second node, 6 and 7 in the first. The ranks 0,
  // 3, 6 and 9 hold the same experts; 9 is in the second node.
  const Mesh experts({1, 12, 1, 1}, 3);
  const parallel::Groups groups = parallel::silent_groups(experts, 0);
  const Spans spans = spans_of(experts, groups, 0, 8);
  EXPECT_EQ(find_span(spans, groups.expert->name()), (Span{3, 2, 1}));
  EXPECT_EQ(find_span(spans, groups.expert_shards().name()), (Span{4, 2, 1}));
}

// Four stages of 4 ranks in nodes of 8: the stages 0 and 1 are in one node, 2 and 3 in the other.
TEST(Span, OfTheLinkBehindEachStage) {
  const Mesh mesh({1, 4, 1, 1}, 1, {.count = 4, .chunks = 2});
  const Span near{2, 1, 2}, far{2, 2, 1};
  const Span behind[] = {near, far, near, far};
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(link_span(mesh, stage, 8), behind[stage]) << stage;
  const parallel::Groups groups = parallel::silent_groups(mesh, 4);
  const Spans spans = spans_of(mesh, groups, 4, 8);
  EXPECT_EQ(find_span(spans, groups.before[0]->name()), near);
  EXPECT_EQ(find_span(spans, groups.behind[0]->name()), far);
  // Three stages of 4 ranks in nodes of 6: rank 2 sends to rank 6 in the other node.
  EXPECT_EQ(link_span(Mesh({1, 4, 1, 1}, 1, {.count = 3}), 0, 6), far);
}

TEST(Sent, LeavesANodeInOnePlaceOfEachRing) {
  EXPECT_EQ(sent_of({8, 1, 8}, "all_gather", 800).nvlink_bytes, 800);
  EXPECT_EQ(sent_of({8, 1, 8}, "all_gather", 800).network_bytes, 0);
  EXPECT_EQ(sent_of({16, 2, 8}, "all_gather", 800).network_bytes, 100);  // one ring for each of the 8 ranks in a node
  EXPECT_EQ(sent_of({16, 2, 8}, "all_gather", 800).nvlink_bytes, 700);
  EXPECT_EQ(sent_of({4, 4, 1}, "all_gather", 800).network_bytes, 800);  // the rank is alone in its node
  EXPECT_EQ(sent_of({4, 4, 1}, "all_gather", 800).nvlink_bytes, 0);
  // 8 ranks and 4 ranks: all that the ring carries leaves the second node at four ranks.
  EXPECT_EQ(sent_of({12, 2, 4}, "all_gather", 800).network_bytes, 200);
}

// A rank of two nodes of 8 sends 10 bytes to each of 15 others. 7 of them are beside it, 8 are in the other node.
TEST(Sent, OfAnAllToAllLeavesForEachRankElsewhere) {
  EXPECT_EQ(sent_of({16, 2, 8}, "all_to_all", 150).nvlink_bytes, 70);
  EXPECT_EQ(sent_of({16, 2, 8}, "all_to_all", 150).network_bytes, 80);
  EXPECT_EQ(sent_of({8, 1, 8}, "all_to_all", 70).nvlink_bytes, 70);
  EXPECT_EQ(sent_of({4, 4, 1}, "all_to_all", 30).network_bytes, 30);
  EXPECT_EQ(sent_of({12, 2, 4}, "all_to_all", 110).network_bytes, 80);  // the other 8 ranks are beside each other
  // 0.8 of 1.5 MB over the network take 3.2 ms; NVLink has the rest in 0.7 ms.
  EXPECT_DOUBLE_EQ(exchange_seconds(kGpu, {16, 2, 8}, "all_to_all", 1.5e6, true), 3.2e-3);
  EXPECT_TRUE(network_decides(kGpu, {16, 2, 8}, "all_to_all", 1.5e6));
}

TEST(Exchange, TakesTheSlowerWayAndARoundOfTheRing) {
  const double start = 8.4e-6, near = 3.4e-6, far = 9.6e-6;
  EXPECT_EQ(exchange_seconds(kGpu, {1, 1, 1}, "all_gather", 0, false), 0);
  EXPECT_DOUBLE_EQ(exchange_seconds(kGpu, {8, 1, 8}, "all_gather", 1e6, false), start + 7 * near + 1e-3);
  EXPECT_DOUBLE_EQ(exchange_seconds(kGpu, {8, 1, 8}, "all_gather", 1e6, true), 1e-3);
  // There are 15 steps, one of which is between the nodes. The data take 0.875 ms over NVLink and 0.5 ms over the network.
  EXPECT_DOUBLE_EQ(exchange_seconds(kGpu, {16, 2, 8}, "all_gather", 1e6, false), start + 14 * near + far + 0.875e-3);
  EXPECT_FALSE(network_decides(kGpu, {16, 2, 8}, "all_gather", 1e6));
  EXPECT_DOUBLE_EQ(exchange_seconds(kGpu, {4, 4, 1}, "all_gather", 1e6, false), start + 3 * far + 4e-3);
  EXPECT_TRUE(network_decides(kGpu, {4, 4, 1}, "all_gather", 1e6));
}

}  // namespace
}  // namespace octet::plan
