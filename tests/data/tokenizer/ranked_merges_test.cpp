#include "octet/data/tokenizer/ranked_merges.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace octet::data {
namespace {

TEST(RankedMerges, EveryWayToMakeATokenOfTwo) {
  const std::vector<RankedToken> tokens = {{"a", 0, 9}, {"b", 1, 9}, {"ab", 2, 5}, {"aba", 3, 7}, {"ba", 4, 6}, {"xyz", 5, 1}};
  std::set<std::tuple<int, int, int, int>> merges;
  for (const BpeMerge& m : ranked_merges(tokens)) merges.emplace(m.left, m.right, m.rank, m.result);
  EXPECT_EQ(merges, (std::set<std::tuple<int, int, int, int>>{{0, 1, 5, 2}, {1, 0, 6, 4}, {2, 0, 7, 3}, {0, 4, 7, 3}}));
}

}  // namespace
}  // namespace octet::data
