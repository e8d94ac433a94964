#include "octet/parallel/context.h"

#include <gtest/gtest.h>

#include <numeric>

#include "octet/base/require.h"

namespace octet::parallel {
namespace {

using Ids = std::vector<std::int32_t>;

Ids count_up(std::int64_t from, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(from));
  return ids;
}

TEST(Context, IsCutAsByHand) {
  const Ids two = count_up(0, 16);  // two sequences of eight
  EXPECT_EQ(context_part(two, 8, 0, 1), two);
  EXPECT_EQ(context_part(two, 8, 0, 2), (Ids{0, 1, 6, 7, 8, 9, 14, 15}));
  EXPECT_EQ(context_part(two, 8, 1, 2), (Ids{2, 3, 4, 5, 10, 11, 12, 13}));
  EXPECT_EQ(context_part(two, 8, 0, 4), (Ids{0, 7, 8, 15}));
  EXPECT_EQ(context_part(two, 8, 2, 4), (Ids{2, 5, 10, 13}));
}

TEST(Context, RanksHoldEveryTokenOnceAndAsMuchWork) {
  constexpr std::int64_t kLength = 24;
  for (const int ranks : {1, 2, 4}) {
    for (const std::int64_t batch : {1, 3}) {
      const Ids whole = count_up(100, batch * kLength);
      std::vector<int> seen(whole.size());
      for (int rank = 0; rank < ranks; ++rank) {
        const Ids part = context_part(whole, kLength, rank, ranks);
        const Ids positions = context_part(count_up(0, kLength), kLength, rank, ranks);
        ASSERT_EQ(static_cast<std::int64_t>(part.size()), batch * kLength / ranks);
        for (std::size_t i = 0; i < part.size(); ++i) {
          ++seen[static_cast<std::size_t>(part[i] - 100)];
          EXPECT_EQ((part[i] - 100) % kLength, positions[i % positions.size()])
              << "rank " << rank << " of " << ranks << " token " << i;
        }
        // The number of keys that the rank's queries see.
        const std::int64_t work = std::accumulate(positions.begin(), positions.end(), kLength / ranks);
        EXPECT_EQ(work, kLength * (kLength + 1) / 2 / ranks) << "rank " << rank << " of " << ranks;
        // zigzag_chunks() gives the same positions as ranges.
        Ids told;
        for (const TokenRange& range : zigzag_chunks(kLength, rank, ranks)) {
          const Ids more = count_up(range.begin, range.count());
          told.insert(told.end(), more.begin(), more.end());
        }
        EXPECT_EQ(told, positions);
      }
      EXPECT_EQ(seen, std::vector<int>(whole.size(), 1));
    }
  }
}

TEST(Context, RefusesWhatItCannotCut) {
  EXPECT_THROW(zigzag_chunks(10, 0, 2), Error);
  EXPECT_THROW(zigzag_chunks(2, 0, 2), Error);
  EXPECT_THROW(zigzag_chunks(0, 0, 2), Error);
  EXPECT_THROW(zigzag_chunks(8, -1, 2), Error);
  EXPECT_THROW(zigzag_chunks(8, 2, 2), Error);
  EXPECT_THROW(context_part(count_up(0, 10), 8, 0, 2), Error);
  EXPECT_EQ(zigzag_chunks(7, 0, 1), (std::vector<TokenRange>{{0, 7}}));
}

}  // namespace
}  // namespace octet::parallel
