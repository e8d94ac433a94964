#include "octet/numerics/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet {
namespace {

static_assert(BFloat16(1.0f).bits == 0x3F80 && static_cast<float>(BFloat16::from_bits(0xC000)) == -2.0f);
static_assert(Float16(1.0f).bits == 0x3C00 && Float16(65504.0f).bits == 0x7BFF);

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Computes a 16-bit value from the definition of sign, exponent and mantissa.
double value_of(int bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * HUGE_VAL;
  return sign * std::ldexp((exponent > 0 ? 1.0 : 0.0) + std::ldexp(mantissa, -mantissa_bits), std::max(exponent, 1) - bias);
}

template <class T>
T with_bits(int bits) {
  T result{};
  result.bits = static_cast<std::uint16_t>(bits);
  return result;
}

template <class T>
void check_every_value_and_middle(int exponent_bits, int mantissa_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  for (int bits = 0; bits < 0x8000; ++bits) {
    const double value = value_of(bits, exponent_bits, mantissa_bits);
    const auto decoded = static_cast<float>(with_bits<T>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(decoded)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(decoded)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(decoded), value) << bits;
    ASSERT_EQ(static_cast<double>(static_cast<float>(with_bits<T>(bits | 0x8000))), -value) << bits;
    ASSERT_EQ(T(decoded).bits, bits);
    ASSERT_EQ(T(-decoded).bits, bits | 0x8000);
    if (bits >= infinity) continue;
    // The middle between this value and the next must round to the even one. Above the largest value, the next is where it would
    // lie if the format had another binade.
    const double next = bits + 1 == infinity ? 2 * value - value_of(bits - 1, exponent_bits, mantissa_bits)
                                             : value_of(bits + 1, exponent_bits, mantissa_bits);
    const auto middle = static_cast<float>((value + next) / 2);
    if (static_cast<double>(middle) != (value + next) / 2) continue;  // the middle is below FP32's subnormals
    ASSERT_EQ(T(middle).bits, bits % 2 ? bits + 1 : bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, 0.0f)).bits, bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, HUGE_VALF)).bits, bits + 1) << bits;
    ASSERT_EQ(T(-middle).bits, 0x8000 | (bits % 2 ? bits + 1 : bits)) << bits;
  }
}

TEST(BFloat16, RoundsToNearestEven) { check_every_value_and_middle<BFloat16>(8, 7); }
TEST(Float16, RoundsToNearestEven) { check_every_value_and_middle<Float16>(5, 10); }

TEST(BFloat16, NanStaysNan) {
  for (const std::uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(from_bits(bits))))) << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(from_bits(bits))))) << bits;
  }
}

TEST(BFloat16, StochasticRoundingIsUnbiasedAndKeepsExactValues) {
  for (const std::uint32_t bits : {0x3F801234u, 0xBF80FFFFu, 0x00000001u, 0x3F800000u, 0x40490FDBu}) {
    const std::uint32_t low = bits & 0xFFFFu;
    std::uint32_t ups = 0;
    for (std::uint32_t random = 0; random < 0x10000u; ++random)
      ups += BFloat16::stochastic(from_bits(bits), random).bits != bits >> 16;
    EXPECT_EQ(ups, low) << bits;
  }
  for (const float x : {HUGE_VALF, -HUGE_VALF}) EXPECT_EQ(static_cast<float>(BFloat16::stochastic(x, 0xFFFF)), x);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16::stochastic(std::nanf(""), 0xFFFF))));
  EXPECT_EQ(static_cast<float>(BFloat16::stochastic(std::numeric_limits<float>::max(), 0xFFFF)), HUGE_VALF);
}

}  // namespace
}  // namespace octet
