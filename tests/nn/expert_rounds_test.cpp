#include "octet/nn/expert_rounds.h"

#include <gtest/gtest.h>

#include <numeric>

#include "octet/base/math.h"
#include "octet/base/rng.h"

namespace octet::nn {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& x) { return std::accumulate(x.begin(), x.end(), std::int64_t{0}); }

// Checks that every row of every rank arrives once at its expert and in order, that ranks agree on who sends how many rows, and
// that no round holds more rows than planned.
void check_rounds(const std::vector<std::int32_t>& counts, int ranks, std::int64_t quota) {
  const std::size_t n = static_cast<std::size_t>(ranks), experts = counts.size() / n, own = experts / n;
  std::vector<std::vector<ExpertRound>> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(expert_rounds(counts, ranks, rank, quota));
  for (std::size_t from = 0; from < n; ++from) {
    ASSERT_EQ(all[from].size(), all[0].size());
    std::vector<std::int64_t> next(n), got(experts);
    std::int64_t begin = 0;
    for (std::size_t to = 0; to < n; ++to) {
      next[to] = begin;
      for (std::size_t e = 0; e < own; ++e) begin += counts[from * experts + to * own + e];
    }
    for (std::size_t r = 0; r < all[0].size(); ++r) {
      const ExpertRound& round = all[from][r];
      for (std::size_t to = 0; to < n; ++to) {
        EXPECT_LE(round.sent[to], quota);
        if (round.sent[to] > 0) {
          EXPECT_EQ(round.first[to], next[to]) << "round " << r;
        }
        next[to] += round.sent[to];
        EXPECT_EQ(round.sent[to], all[to][r].received[from]);
        EXPECT_EQ(round.sent[to], sum(all[to][r].parts[from]));
        for (std::size_t e = 0; e < own; ++e) got[to * own + e] += all[to][r].parts[from][e];
      }
    }
    for (std::size_t e = 0; e < experts; ++e) EXPECT_EQ(got[e], counts[from * experts + e]);
  }
  for (std::size_t rank = 0; rank < n; ++rank) {
    for (const ExpertRound& round : all[rank]) {
      for (std::size_t e = 0; e < own; ++e) {
        std::int64_t rows = 0;
        for (std::size_t from = 0; from < n; ++from) rows += round.parts[from][e];
        EXPECT_EQ(round.rows[e], round_up(rows, kExpertRows));
      }
      EXPECT_LE(round.total(), fullest_round(quota, quota, ranks, static_cast<std::int64_t>(own)).total());
    }
  }
}

TEST(ExpertRounds, EveryRowArrivesOnce) {
  const Rng rng(3, RngStream::test, 9);
  std::uint64_t draws = 0;
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t own : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
      for (const std::int64_t quota : {std::int64_t{1}, std::int64_t{7}, std::int64_t{300}, std::int64_t{100000}}) {
        const std::int32_t most = quota == 1 ? 4 : 400;
        std::vector<std::int32_t> counts;
        for (std::size_t i = 0; i < static_cast<std::size_t>(ranks * ranks) * own; ++i)
          counts.push_back(std::max(0, static_cast<std::int32_t>(rng.uniform(++draws) * 1.5 * most) - most / 2));
        check_rounds(counts, ranks, quota);
      }
    }
  }
}

TEST(ExpertRounds, OfNoRowsThereIsOneEmptyRound) {
  const auto rounds = expert_rounds(std::vector<std::int32_t>(8), 2, 1, 10);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].total(), 0);
  check_rounds(std::vector<std::int32_t>(8), 2, 10);
}

TEST(ExpertRounds, AllRowsForOneExpert) {
  std::vector<std::int32_t> counts(16);
  for (std::size_t rank = 0; rank < 4; ++rank) counts[rank * 4 + 2] = 1000;
  check_rounds(counts, 4, 500);
  EXPECT_EQ(expert_rounds(counts, 4, 2, 500).size(), 2u);
  EXPECT_EQ(expert_rounds(counts, 4, 2, 500)[0].rows[0], round_up(std::int64_t{2000}, kExpertRows));
}

TEST(ExpertRounds, TheFullestHoldsAsMuchForOneExpertAsThereCanBe) {
  const ExpertRound full = fullest_round(1000, 500, 1, 8);
  EXPECT_EQ(full.rows[0], 512);
  EXPECT_EQ(full.rows[1], 512);
  EXPECT_EQ(full.total(), (1000 + 8 * 127) / 128 * 128);
  EXPECT_LE(even_round(1000, 1, 8).total(), full.total());
  // There must be room for all rows that arrive.
  for (const int ranks : {1, 2, 8}) {
    for (const std::int64_t experts : {1, 2, 4}) {
      for (const ExpertRound& round : {fullest_round(1000, 300, ranks, experts), even_round(1000, ranks, experts)}) {
        std::int64_t arrived = 0;
        for (std::size_t e = 0; e < round.rows.size(); ++e) {
          std::int64_t rows = 0;
          for (const auto& parts : round.parts) rows += parts[e];
          EXPECT_LE(rows, round.rows[e]) << ranks << " ranks, expert " << e;
          arrived += rows;
        }
        EXPECT_LE(arrived, sum(round.received));
      }
    }
  }
}

}  // namespace
}  // namespace octet::nn
