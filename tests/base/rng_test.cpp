#include "octet/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <set>

#include "octet/base/normal.h"

namespace octet {
namespace {

// Known answers from Random123 (kat_vectors, philox4x32 with 10 rounds).
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

// The mean of n draws with mean m and deviation s lies within 5 s / sqrt(n) of m, except about once in two million times.
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

// Compares with the library's functions in long double at u = (w + 1) / 2^32 and at v = w / 2^32 of a turn, which are the values
// that draws come from.
TEST(Normal, LogarithmAndCosineAreThoseOfTheLibrary) {
  constexpr long double kUlp = std::numeric_limits<double>::epsilon();  // one ulp of a result at the lower end of its binade
  // The expected angle is rounded to 64 bits. The roundings of pi and of the product err by up to 2^-61.
  constexpr long double kAngle = 0x1p-61L;
  long double worst_log = 0, worst_cos = 0;
  const auto look = [&](std::uint32_t w) {
    const double u = (static_cast<double>(w) + 1.0) * 0x1p-32;
    const long double log = std::log(static_cast<long double>(u));
    if (u < 1) worst_log = std::max(worst_log, std::abs((static_cast<long double>(portable_log(u)) - log) / log));
    const long double cosine = std::cos(2 * std::numbers::pi_v<long double> * static_cast<long double>(w) * 0x1p-32L);
    const long double error = std::abs(static_cast<long double>(portable_cos(w)) - cosine);
    if (w % (1u << 30) != 0) worst_cos = std::max(worst_cos, (error - kAngle) / std::abs(cosine));
  };
  for (std::uint32_t i = 0; i < 1000; ++i) {
    for (std::uint32_t eighth = 0; eighth < 8; ++eighth) look((eighth << 29) + i - 500);
  }
  const Rng rng(3, RngStream::test);
  for (std::uint64_t i = 0; i < 200000; ++i) look(rng.words(i)[0]);
  EXPECT_LE(worst_log, kUlp);
  EXPECT_LE(worst_cos, 2 * kUlp) << "one of the polynomial, one of the angle";
  EXPECT_EQ(portable_log(1.0), 0.0);
  EXPECT_EQ(portable_cos(0), 1.0);
  EXPECT_EQ(portable_cos(1u << 30), 0.0);
  EXPECT_EQ(portable_cos(1u << 31), -1.0);
  EXPECT_EQ(portable_cos(3u << 30), 0.0);
}

// These bits must be the same on every machine and in every release, because they determine a run's initial weights.
TEST(Normal, BitsArePinned) {
  const Rng rng(1, RngStream::init, name_id("model.embed_tokens.weight"));
  EXPECT_EQ(rng.normal(0), 0x1.6cae1202ddab9p-3);
  EXPECT_EQ(rng.normal(1), -0x1.a8dfa4c61898cp+0);
  EXPECT_EQ(rng.normal(1ull << 40), -0x1.61b99a00125ebp-2);
}

TEST(NameId, IsFnv1a) {
  // These are published test vectors of 32-bit FNV-1a.
  static_assert(name_id("") == 0x811c9dc5u);
  static_assert(name_id("a") == 0xe40c292cu);
  static_assert(name_id("foobar") == 0xbf9cf968u);
}

}  // namespace
}  // namespace octet
