#include "octet/numerics/scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

static_assert(scale_from_amax(448.0f, {}) == 1.0f);
static_assert(scale_from_amax(kTiny, {}) == kMax);
static_assert(delayed_scale(kTiny, Fp8Format::e5m2, -64) == kMax);

TEST(MaxMagnitude, NanWins) {
  EXPECT_EQ(max_magnitude(-3.0f, 2.0f), 3.0f);
  EXPECT_EQ(max_magnitude(0.0f, -HUGE_VALF), HUGE_VALF);
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    EXPECT_TRUE(std::isnan(max_magnitude(nan, HUGE_VALF)));
    EXPECT_TRUE(std::isnan(max_magnitude(HUGE_VALF, nan)));
  }
}

TEST(ScaleFromAmax, IsTheRoundedQuotient) {
  for (const float amax : {1.0f, 3.0f, 0.1f, 1e-30f, 1e30f, kMax, 447.99997f}) {
    EXPECT_EQ(scale_from_amax(amax, {}), 448.0f / amax);
    EXPECT_EQ(scale_from_amax(amax, {.format = Fp8Format::e5m2}), 57344.0f / amax);
  }
}

TEST(ScaleFromAmax, IsOneForZeroAndNonFinite) {
  for (const float amax : {0.0f, HUGE_VALF, std::nanf("")}) {
    EXPECT_EQ(scale_from_amax(amax, {}), 1.0f);
    EXPECT_EQ(scale_from_amax(amax, {.power_of_2 = true}), 1.0f);
  }
}

TEST(ScaleFromAmax, ReplacesAnInfiniteQuotientByTile) {
  for (const float amax : {kTiny, 0x1p-133f, 0x1p-126f, 1e-37f}) {
    const bool overflows = std::isinf(448.0f / amax);
    EXPECT_EQ(scale_from_amax(amax, {.tile = ScaleTile::tensor}), overflows ? kMax : 448.0f / amax);
    EXPECT_EQ(scale_from_amax(amax, {.tile = ScaleTile::row}), overflows ? kMax : 448.0f / amax);
    EXPECT_EQ(scale_from_amax(amax, {.tile = ScaleTile::block_1x128}), overflows ? 0x1.FEp127f : 448.0f / amax);
    EXPECT_EQ(scale_from_amax(amax, {.tile = ScaleTile::block_128x128, .power_of_2 = true}),
              overflows ? 0x1p127f : std::exp2(std::floor(std::log2(448.0f / amax))));
  }
}

// The code decides in FP64 whether the quotient overflows. FP32 division must agree at all values around the threshold.
TEST(ScaleFromAmax, OverflowsExactlyWhereTheDivisionDoes) {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    volatile float top = fp8_max(format);
    float amax = top / kMax;
    for (int i = 0; i < 4000; ++i) amax = std::nextafter(amax, 0.0f);
    for (int i = 0; i < 8000; ++i, amax = std::nextafter(amax, 1.0f)) {
      const float quotient = top / amax;
      ASSERT_EQ(scale_from_amax(amax, {.format = format}), std::isinf(quotient) ? kMax : quotient) << amax;
      ASSERT_EQ(delayed_scale(amax, format, 0), std::isinf(quotient) ? kMax : quotient) << amax;
    }
  }
}

TEST(ScaleFromAmax, EpsilonIsAFloor) {
  const QuantSpec spec{.epsilon = 0.5f};
  EXPECT_EQ(scale_from_amax(0.25f, spec), 896.0f);
  EXPECT_EQ(scale_from_amax(0.0f, spec), 896.0f);
  EXPECT_EQ(scale_from_amax(1.0f, spec), 448.0f);
  EXPECT_EQ(scale_from_amax(std::nanf(""), spec), 1.0f);
}

TEST(ScaleFromAmax, PowerOf2RoundsDown) {
  for (const float amax : {1.0f, 3.0f, 0.1f, 447.0f, 449.0f, kMax, 1e-30f}) {
    const float scale = scale_from_amax(amax, {.power_of_2 = true}), plain = scale_from_amax(amax, {});
    int exponent;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f);
    EXPECT_LE(scale, plain);
    EXPECT_GT(2.0f * scale, plain);
  }
}

TEST(DelayedScale, AppliesTheMarginToTheNumerator) {
  EXPECT_EQ(delayed_scale(3.0f, Fp8Format::e4m3, 2), 112.0f / 3.0f);
  EXPECT_EQ(delayed_scale(3.0f, Fp8Format::e5m2, -1), 114688.0f / 3.0f);
  EXPECT_EQ(delayed_scale(kTiny, Fp8Format::e4m3, 0), kMax);
}

TEST(MxScale, RoundsTheExponentUp) {
  EXPECT_EQ(mx_scale_code(448.0f), 127);
  EXPECT_EQ(mx_scale_code(449.0f), 128);
  EXPECT_EQ(mx_scale_code(447.0f), 127);
  EXPECT_EQ(mx_scale_code(0.0f), 0x00);
  EXPECT_EQ(mx_scale_code(HUGE_VALF), 0xFE);
  EXPECT_EQ(mx_scale_code(std::nanf("")), 0xFF);
  // Scaled magnitudes never exceed the largest value by more than the rounding of the FP32 product with 1/448.
  for (int e = -126; e < 127; ++e) {
    for (const float amax : {std::ldexp(1.0f, e), std::ldexp(1.7f, e), std::ldexp(1.76f, e)}) {
      const float scaled = amax * e8m0_reciprocal(mx_scale_code(amax));
      EXPECT_LE(scaled, 448.0f * (1.0f + 0x1p-22f)) << amax;
      if (amax > 1e-35f) {
        EXPECT_GE(scaled, 224.0f) << amax;
      }
    }
  }
}

}  // namespace
}  // namespace octet
