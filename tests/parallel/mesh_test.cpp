#include "octet/parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

using Ranks = std::vector<int>;

// Two replicas of three shards of two contexts of two tensor parts, counted by hand.
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

// Groups of an axis part the ranks, and everybody in one agrees on who is in it.
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

TEST(Mesh, RefusesAnAxisOfNone) { EXPECT_THROW(Mesh({1, 0, 1, 1}), Error); }

}  // namespace
}  // namespace octet::parallel
