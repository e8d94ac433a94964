#include "octet/nn/expert_rounds.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/tensor/row_groups.h"

namespace octet::nn {
namespace {

// A row of a rank, which stand in the order of their experts.
struct Row {
  int from = 0;
  std::size_t expert = 0;
  std::int64_t index = 0;
  auto operator<=>(const Row&) const = default;
};

// Sends the rows of all ranks as the rounds say. Checks that every row arrives once, in the group of its expert, where rows stand
// by rank and in their order, that ranks agree on who sends how many rows, and that no round holds more than planned.
void check_rounds(const std::vector<std::int32_t>& counts, int ranks, std::int64_t capacity) {
  const std::size_t n = static_cast<std::size_t>(ranks), experts = counts.size() / n, own = experts / n;
  std::vector<std::vector<ExpertRound>> all;
  std::vector<std::vector<Row>> rows(n);
  std::multiset<Row> left;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(expert_rounds(counts, ranks, rank, capacity));
    for (std::size_t e = 0; e < experts; ++e) {
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(rank) * experts + e]; ++i)
        rows[static_cast<std::size_t>(rank)].push_back({rank, e, i});
    }
    left.insert(rows[static_cast<std::size_t>(rank)].begin(), rows[static_cast<std::size_t>(rank)].end());
  }
  for (std::size_t r = 0; r < all[0].size(); ++r) {
    for (std::size_t to = 0; to < n; ++to) {
      const ExpertRound& here = all[to][r];
      ASSERT_EQ(all[to].size(), all[0].size());
      std::vector<Row> arriving;
      for (std::size_t from = 0; from < n; ++from) {
        const ExpertRound& there = all[from][r];
        EXPECT_LE(there.sent[to], capacity);
        ASSERT_EQ(there.sent[to], here.received[from]);
        for (std::int64_t i = 0; i < there.sent[to]; ++i)
          arriving.push_back(rows[from].at(static_cast<std::size_t>(there.first[to] + i)));
      }
      ASSERT_EQ(here.places.size(), arriving.size());
      const std::vector<GroupExtent> groups = extents_of(here.counts);
      ASSERT_EQ(groups.size(), own);
      EXPECT_LE(groups.back().first + groups.back().padded(), grouped_rows(ranks * capacity, static_cast<std::int64_t>(own)));
      std::map<std::int64_t, Row> placed;
      for (std::size_t i = 0; i < arriving.size(); ++i) {
        EXPECT_TRUE(placed.emplace(here.places[i], arriving[i]).second) << "two rows at " << here.places[i];
        EXPECT_EQ(left.erase(arriving[i]), 1u);
      }
      for (const GroupExtent& group : groups) {
        Row before{-1, 0, 0};
        for (std::int64_t row = group.first; row < group.first + group.count; ++row) {
          ASSERT_EQ(placed.count(row), 1u) << "nothing at " << row;
          EXPECT_EQ(placed[row].expert, to * own + group.group);
          EXPECT_LT(before, placed[row]);
          before = placed[row];
        }
      }
    }
  }
  EXPECT_TRUE(left.empty());
}

TEST(ExpertRounds, EveryRowArrivesOnce) {
  const Rng rng(3, RngStream::test, 9);
  std::uint64_t draws = 0;
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t own : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
      for (const std::int64_t capacity : {std::int64_t{1}, std::int64_t{7}, std::int64_t{300}, std::int64_t{100000}}) {
        const std::int32_t most = capacity == 1 ? 4 : 400;
        std::vector<std::int32_t> counts;
        for (std::size_t i = 0; i < static_cast<std::size_t>(ranks * ranks) * own; ++i)
          counts.push_back(std::max(0, static_cast<std::int32_t>(rng.uniform(++draws) * 1.5 * most) - most / 2));
        check_rounds(counts, ranks, capacity);
      }
    }
  }
}

TEST(ExpertRounds, OfNoRowsThereIsOneEmptyRound) {
  const auto rounds = expert_rounds(std::vector<std::int32_t>(8), 2, 1, 10);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_TRUE(rounds[0].places.empty());
  check_rounds(std::vector<std::int32_t>(8), 2, 10);
}

TEST(ExpertRounds, AllRowsForOneExpert) {
  std::vector<std::int32_t> counts(16);
  for (std::size_t rank = 0; rank < 4; ++rank) counts[rank * 4 + 2] = 1000;
  check_rounds(counts, 4, 500);
  EXPECT_EQ(expert_rounds(counts, 4, 2, 500).size(), 2u);
  EXPECT_EQ(expert_rounds(counts, 4, 2, 500)[0].counts[0], 2000);
}

TEST(ExpertRounds, WhatNobodyHasCountedIsEven) {
  for (int rank = 0; rank < 4; ++rank) {
    const ExpertRound round = even_round(1001, 4, rank, 3);
    EXPECT_EQ(round.sent, (std::vector<std::int64_t>{251, 251, 251, 248}));
    EXPECT_EQ(round.first, (std::vector<std::int64_t>{0, 251, 502, 753}));
    EXPECT_EQ(round.counts, (std::vector<std::int32_t>{336, 336, 332}));
    EXPECT_EQ(round.received[static_cast<std::size_t>(rank)], round.sent[static_cast<std::size_t>(rank)]) << "rank " << rank;
    EXPECT_TRUE(round.places.empty());
  }
}

}  // namespace
}  // namespace octet::nn
