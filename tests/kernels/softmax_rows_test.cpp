#include "octet/kernels/attention/softmax_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "octet/base/rng.h"

namespace octet {
namespace {

using kernels::cpu::exponentials;
using kernels::cpu::largest_score;
using kernels::cpu::score_gradients;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2 ulp of FP32 are at most 2^-22 of a normal number. A build for processors without FMA rounds scale * score as well, which
// changes an exponential by as much of itself as the product changes.
::testing::AssertionResult is_rounded(BFloat16 actual, long double exact, [[maybe_unused]] float product) {
  long double error = 0x1p-22L;
#ifndef __FMA__
  error += static_cast<long double>(std::abs(product)) * 0x1p-23L;
#endif
  const auto low = BFloat16(static_cast<float>(exact * (exact > 0 ? 1 - error : 1 + error)));
  const auto high = BFloat16(static_cast<float>(exact * (exact > 0 ? 1 + error : 1 - error)));
  if (actual == low || actual == high) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << static_cast<float>(actual) << ", not " << exact;
}

// Arguments from beyond the smallest to beyond the largest exponential, in steps that meet many fractions.
TEST(SoftmaxRows, ExponentialsAreRoundedOnce) {
  std::vector<float> scores;
  for (int i = 0; i < 64 * 1024; ++i) scores.push_back(-120.0f + 0.0033f * static_cast<float>(i));
  const auto n = static_cast<std::int64_t>(scores.size());
  for (const float scale : {1.0f, 0.125f, 1.37f}) {
    for (const float shift : {0.0f, 3.3f, 88.0f}) {
      std::vector<BFloat16> p(scores.size());
      exponentials(scores.data(), n, scale, shift, p.data());
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const long double exact = std::exp(static_cast<long double>(std::fma(scale, scores[i], -shift)));
        if (exact < 0x1p-126L) {
          ASSERT_LT(static_cast<float>(p[i]), 0x1p-125f) << scores[i] << " * " << scale << " - " << shift;
        } else if (exact < 0x1p127L) {
          ASSERT_TRUE(is_rounded(p[i], exact, scale * scores[i])) << scores[i] << " * " << scale << " - " << shift;
        }
      }
    }
  }
}

TEST(SoftmaxRows, SpecialValues) {
  std::vector<float> scores(16, -kInfinity);
  scores[1] = std::nanf("");
  scores[2] = 0;
  scores[3] = -1000;
  scores[4] = kInfinity;
  std::vector<BFloat16> p(16);
  EXPECT_TRUE(std::isnan(exponentials(scores.data(), 16, 1, 0, p.data())));
  EXPECT_EQ(static_cast<float>(p[0]), 0.0f);
  EXPECT_TRUE(std::isnan(static_cast<float>(p[1])));
  EXPECT_EQ(static_cast<float>(p[2]), 1.0f);
  EXPECT_EQ(static_cast<float>(p[3]), 0.0f);
  EXPECT_EQ(static_cast<float>(p[4]), kInfinity);
  scores[1] = scores[4] = -kInfinity;
  EXPECT_EQ(exponentials(scores.data(), 16, 1, 0, p.data()), 1.0f);
}

// The sum is that of the exponentials before rounding.
TEST(SoftmaxRows, SumsBeforeRounding) {
  const Rng rng(7, RngStream::test, 1);
  for (const std::int64_t n : {16, 32, 256, 8192}) {
    std::vector<float> scores;
    long double expected = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      scores.push_back(-20.0f * static_cast<float>(rng.word64(static_cast<std::uint64_t>(i)) >> 40) * 0x1p-24f);
      expected += std::exp(static_cast<long double>(scores.back()));
    }
    std::vector<BFloat16> p(scores.size());
    const float sum = exponentials(scores.data(), n, 1, 0, p.data());
    // 16 lanes of n / 16 terms, a tree of 4 additions, and 2 ulp of each term
    const auto bound = static_cast<double>(n / 16 + 4) * 0x1p-24 + 0x1p-22;
    EXPECT_NEAR(sum, static_cast<double>(expected), bound * static_cast<double>(expected)) << n;
  }
}

TEST(SoftmaxRows, LargestScore) {
  std::vector<float> scores(48, -kInfinity);
  EXPECT_EQ(largest_score(scores.data(), 48), -kInfinity);
  for (std::size_t at = 0; at < scores.size(); ++at) {
    scores[at] = -100.0f + static_cast<float>(at);
    EXPECT_EQ(largest_score(scores.data(), 48), scores[at]);
  }
}

TEST(SoftmaxRows, ScoreGradients) {
  const Rng rng(7, RngStream::test, 2);
  std::vector<float> scores, dp;
  for (std::uint64_t i = 0; i < 1024; ++i) {
    scores.push_back(-30.0f * static_cast<float>(rng.word64(2 * i) >> 40) * 0x1p-24f);
    dp.push_back(static_cast<float>(rng.word64(2 * i + 1) >> 40) * 0x1p-23f - 1.0f);
  }
  std::vector<BFloat16> p(1024), ds(1024);
  score_gradients(scores.data(), dp.data(), 1024, 0.3f, 0.7f, 0.11f, p.data(), ds.data());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(std::fma(0.3f, scores[i], -0.7f)));
    ASSERT_TRUE(is_rounded(p[i], exact, 0.3f * scores[i])) << i;
    ASSERT_TRUE(is_rounded(ds[i], exact * static_cast<long double>(dp[i] - 0.11f), 0.3f * scores[i])) << i;
  }
}

}  // namespace
}  // namespace octet
