#include "octet/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace octet {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, StreamsSubjectsStepsSeedsAndPositionsDiffer) {
  std::set<std::uint64_t> seen;
  int numbers = 0;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32}) {
    for (const RngStream stream : {RngStream::init, RngStream::shuffle, RngStream::round_weight, RngStream::test}) {
      for (const std::uint32_t subject : {0u, 1u, name_id("model.norm.weight")}) {
        const Rng rng(seed, stream, subject);
        for (const std::uint64_t position : {0ull, 1ull, 1ull << 32}) {
          for (const std::uint32_t step : {0u, 1u}) {
            seen.insert(rng.word64(position, step));
            ++numbers;
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(numbers));
}

TEST(Rng, IsAPureFunction) {
  constexpr Rng a(42, RngStream::init, 7), b(42, RngStream::init, 7);
  static_assert(a.word64(123, 4) == b.word64(123, 4));
  EXPECT_EQ(a.uniform(99), b.uniform(99));
}

// n draws of mean m and deviation s: their mean is within 5 s / sqrt(n) with a chance of all but one in two million.
TEST(Rng, UniformAndNormalHaveTheirMoments) {
  constexpr int kDraws = 200000;
  const Rng rng(1, RngStream::test);
  double uniform = 0, low = 1, high = 0, sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform(static_cast<std::uint64_t>(i)), n = rng.normal(static_cast<std::uint64_t>(i));
    uniform += u;
    low = std::min(low, u);
    high = std::max(high, u);
    sum += n;
    squares += n * n;
    fourth += n * n * n * n;
  }
  const double root = std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(uniform / kDraws, 0.5, 5 * std::sqrt(1.0 / 12) / root);
  EXPECT_GE(low, 0.0);
  EXPECT_LT(high, 1.0);
  EXPECT_NEAR(sum / kDraws, 0, 5 / root);
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(fourth / kDraws, 3, 5 * std::sqrt(96.0) / root);
}

TEST(NameId, IsFnv1a) {
  // Published vectors of 32-bit FNV-1a.
  static_assert(name_id("") == 0x811c9dc5u);
  static_assert(name_id("a") == 0xe40c292cu);
  static_assert(name_id("foobar") == 0xbf9cf968u);
}

}  // namespace
}  // namespace octet
