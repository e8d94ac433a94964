#include "octet/parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/base/require.h"
#include "octet/parallel/groups.h"

namespace octet::parallel {
namespace {

using Ranks = std::vector<int>;

// Two replicas of three shards of two context parts of two tensor parts, counted by hand.
TEST(Mesh, CountsFromTheFastestAxis) {
  const Mesh mesh({2, 3, 2, 2});
  EXPECT_EQ(mesh.ranks(), 24);
  EXPECT_EQ(mesh.data_coordinates(), 6);
  EXPECT_EQ(mesh.coordinate(Axis::tensor, 19), 1);
  EXPECT_EQ(mesh.coordinate(Axis::context, 19), 1);
  EXPECT_EQ(mesh.coordinate(Axis::shard, 19), 1);
  EXPECT_EQ(mesh.coordinate(Axis::replicate, 19), 1);
  EXPECT_EQ(mesh.data_coordinate(19), 4);
  EXPECT_EQ(mesh.group({Axis::tensor}, 19), (Ranks{18, 19}));
  EXPECT_EQ(mesh.group({Axis::context}, 19), (Ranks{17, 19}));
  EXPECT_EQ(mesh.group({Axis::shard}, 19), (Ranks{15, 19, 23}));
  EXPECT_EQ(mesh.group({Axis::replicate}, 19), (Ranks{7, 19}));
  EXPECT_EQ(mesh.group({Axis::shard, Axis::context}, 19), (Ranks{13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(mesh.group({}, 19), (Ranks{19}));
}

// The groups of an axis partition the ranks, and all ranks of a group agree on its members.
TEST(Mesh, GroupsOfAnAxisAreAPartition) {
  for (const auto& sizes : {std::array{1, 1, 1, 1}, std::array{1, 8, 1, 1}, std::array{2, 2, 1, 2}, std::array{3, 1, 4, 2}}) {
    const Mesh mesh(sizes);
    for (const std::initializer_list<Axis> axes : {std::initializer_list<Axis>{Axis::replicate},
                                                   {Axis::shard, Axis::context},
                                                   {Axis::tensor},
                                                   {Axis::replicate, Axis::tensor}}) {
      std::set<Ranks> groups;
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        const Ranks group = mesh.group(axes, rank);
        EXPECT_EQ(static_cast<int>(group.size()), mesh.size(axes));
        EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
        groups.insert(group);
      }
      EXPECT_EQ(static_cast<int>(groups.size()) * mesh.size(axes), mesh.ranks());
    }
  }
}

// Rank 13 is shard 2 and context part 1 of the second replica.
TEST(Mesh, ExpertsAreExchangedBetweenNeighboursOnTheShardAxis) {
  const Mesh mesh({2, 4, 2, 1}, 2);
  EXPECT_EQ(mesh.ranks(), 16) << "expert is no factor of it";
  EXPECT_EQ(mesh.expert_coordinate(13), 0);
  EXPECT_EQ(mesh.expert_group(13), (Ranks{13, 15}));
  EXPECT_EQ(mesh.expert_shards(13), (Ranks{8, 9, 12, 13}));
  EXPECT_EQ(mesh.expert_coordinate(15), 1);
  EXPECT_EQ(mesh.expert_shards(15), (Ranks{10, 11, 14, 15}));
}

// The ranks of an expert group hold every expert once. The ranks with the same coordinate hold the shards of the same experts.
TEST(Mesh, ExpertGroupsAreAPartition) {
  for (const Mesh& mesh : {Mesh({1, 4, 1, 1}), Mesh({1, 4, 1, 1}, 4), Mesh({2, 4, 1, 2}, 2), Mesh({1, 6, 2, 1}, 3)}) {
    std::set<Ranks> groups, shards;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const Ranks group = mesh.expert_group(rank), parts = mesh.expert_shards(rank);
      ASSERT_EQ(static_cast<int>(group.size()), mesh.expert());
      EXPECT_EQ(static_cast<int>(parts.size()), mesh.size({Axis::shard, Axis::context}) / mesh.expert());
      EXPECT_EQ(group[static_cast<std::size_t>(mesh.expert_coordinate(rank))], rank) << "in the order of their coordinates";
      for (const int other : parts) EXPECT_EQ(mesh.expert_coordinate(other), mesh.expert_coordinate(rank));
      groups.insert(group);
      shards.insert(parts);
    }
    EXPECT_EQ(static_cast<int>(groups.size()) * mesh.expert(), mesh.ranks());
    EXPECT_EQ(shards.size() * shards.begin()->size(), static_cast<std::size_t>(mesh.ranks()));
  }
}

TEST(Mesh, RefusesAnAxisOfNone) {
  EXPECT_THROW(Mesh({1, 0, 1, 1}), Error);
  EXPECT_THROW(Mesh({1, 4, 1, 1}, 0), Error);
  EXPECT_THROW(Mesh({1, 4, 3, 1}, 3), Error) << "no divisor of shard";
}

TEST(Experts, AreConsecutiveOnEachRank) {
  const ExpertPlace place{.rank = 1, .size = 4};
  EXPECT_EQ(place.begin(8), 2);
  EXPECT_EQ(place.end(8), 4);
  for (std::int64_t e = 0; e < 8; ++e) {
    EXPECT_EQ(place.holder({e, 8}), e / 2);
    EXPECT_EQ(place.holds({e, 8}), e == 2 || e == 3);
  }
  EXPECT_TRUE(place.holds({})) << "what is no expert's";
}

// A communicator between GPUs takes memory. Experts get one of their own only if their shards lie on other ranks than the shards
// of the other parameters.
TEST(Groups, OfExpertsAreTheirOwnOnlyWhereTheyDiffer) {
  const Groups one = silent_groups(Mesh({1, 4, 1, 1}), 1), two = silent_groups(Mesh({1, 4, 1, 1}, 2), 1);
  EXPECT_EQ(&one.expert_shards(), one.shards.get());
  EXPECT_EQ(one.all_shards().size(), 1u);
  EXPECT_EQ(one.expert->size(), 1);
  EXPECT_EQ(two.expert->size(), 2);
  EXPECT_EQ(two.expert->rank(), 1);
  EXPECT_EQ(two.expert_shards().size(), 2);
  EXPECT_EQ(two.expert_shards().rank(), 0);
  EXPECT_EQ(&two.shards_of({}), two.shards.get());
  EXPECT_EQ(&two.shards_of({0, 4}), &two.expert_shards());
}

}  // namespace
}  // namespace octet::parallel
