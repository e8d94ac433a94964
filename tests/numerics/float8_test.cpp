#include "octet/numerics/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "octet/numerics/bfloat16.h"

namespace octet {
namespace {

constexpr Fp8Format kFp8Formats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

// All functions can be used at compile time.
static_assert(encode_fp8(Fp8Format::e4m3, 1.0f) == 0x38 && decode_fp8(Fp8Format::e4m3, 0x7E) == 448.0f);
static_assert(encode_fp8(Fp8Format::e5m2, -1e9f) == 0xFB && decode_fp8(Fp8Format::e5m2, 0x01) == 0x1p-16f);
static_assert(encode_fp8_stochastic(Fp8Format::e4m3, 1.0f, 0xFFFFFFFFu) == 0x38);
static_assert(encode_e8m0_up(1.5f) == 128 && decode_e8m0(127) == 1.0f && e8m0_reciprocal(128) == 0.5f);

// Computes the value of a code from the definition of the format, with other arithmetic than the header uses.
double value_of(Fp8Format format, int code) {
  const int mantissa_bits = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int magnitude = code & 0x7F, exponent = magnitude >> mantissa_bits, mantissa = magnitude % (1 << mantissa_bits);
  const double sign = code & 0x80 ? -1.0 : 1.0;
  if (format == Fp8Format::e4m3 && magnitude == 0x7F) return std::nan("");
  if (format == Fp8Format::e5m2 && exponent == 31) return mantissa ? std::nan("") : sign * HUGE_VAL;
  const double significand = (exponent > 0 ? 1.0 : 0.0) + std::ldexp(mantissa, -mantissa_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}

// Finds the nearest code by searching all finite codes. A tie goes to the even code.
int nearest_code(Fp8Format format, double value) {
  if (std::isnan(value)) return 0x7F;
  const int top = format == Fp8Format::e4m3 ? 0x7E : 0x7B, sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= value_of(format, top)) return sign | top;
  int best = 0;
  for (int code = 1; code <= top; ++code) {
    const double distance = std::fabs(value_of(format, code) - magnitude), least = std::fabs(value_of(format, best) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return sign | best;
}

TEST(Float8, DecodesEveryCode) {
  for (const Fp8Format format : kFp8Formats) {
    for (int code = 0; code < 256; ++code) {
      const float decoded = decode_fp8(format, static_cast<std::uint8_t>(code));
      const double expected = value_of(format, code);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(decoded)) << code;
      } else {
        EXPECT_EQ(static_cast<double>(decoded), expected) << code;
        EXPECT_EQ(std::signbit(decoded), code >= 0x80) << code;
      }
    }
  }
}

TEST(Float8, EncodesEveryCodeToItself) {
  for (const Fp8Format format : kFp8Formats) {
    for (int code = 0; code < 256; ++code) {
      const double value = value_of(format, code);
      const int expected = nearest_code(format, value);  // 0x7F for NaN, the largest finite code for infinity
      EXPECT_EQ(encode_fp8(format, static_cast<float>(value)), expected) << code;
      if (std::isfinite(value)) {
        EXPECT_EQ(expected, code);
      }
    }
  }
}

TEST(Float8, EncodesEveryBf16ToTheNearest) {
  for (const Fp8Format format : kFp8Formats) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(bits)));
      ASSERT_EQ(encode_fp8(format, x), nearest_code(format, static_cast<double>(x))) << "bits " << bits;
    }
  }
}

TEST(Float8, BreaksTiesToEvenAndNothingElse) {
  for (const Fp8Format format : kFp8Formats) {
    for (int code = 0; code < fp8_layout(format).max_code; ++code) {
      const auto middle = static_cast<float>((value_of(format, code) + value_of(format, code + 1)) / 2);
      for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)}) {
        EXPECT_EQ(encode_fp8(format, x), nearest_code(format, static_cast<double>(x))) << x;
        EXPECT_EQ(encode_fp8(format, -x), nearest_code(format, static_cast<double>(-x))) << -x;
      }
    }
  }
}

TEST(Float8, SaturatesInfinityAndHugeValues) {
  for (const Fp8Format format : kFp8Formats) {
    for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(), fp8_max(format) * 1.25f}) {
      EXPECT_EQ(encode_fp8(format, x), fp8_layout(format).max_code) << x;
      EXPECT_EQ(encode_fp8(format, -x), fp8_layout(format).max_code | 0x80) << x;
    }
  }
}

TEST(Float8, KeepsSubnormalsOfFp32) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_GT(tiny, 0.0f);  // this process does not flush subnormals to zero
  EXPECT_EQ(tiny * 0x1p126f, 0x1p-23f);
  for (const Fp8Format format : kFp8Formats) {
    EXPECT_EQ(encode_fp8(format, tiny), 0x00);
    EXPECT_EQ(encode_fp8(format, -tiny), 0x80);
    EXPECT_EQ(encode_fp8(format, tiny * 0x1p126f * 0x1p22f), nearest_code(format, 0.5));
  }
}

// Over equally spaced random words, the share of roundings up equals the position between the two neighbours.
TEST(Float8, StochasticRoundingIsUnbiased) {
  constexpr int kDraws = 4096;
  for (const Fp8Format format : kFp8Formats) {
    const double unit = value_of(format, 1);
    for (const double x : {1.0, 1.03, 3.77, 447.0, unit * 0.25, unit * 2.6, unit * 0x1p-5, unit * 0x1p-9, unit * 0x1p-14,
                           unit * 0x1p-40, 0x1p-140, -1.03, -unit * 0.3}) {
      const auto value = static_cast<float>(x);
      double sum = 0;
      for (int i = 0; i < kDraws; ++i) {
        const std::uint32_t random = static_cast<std::uint32_t>(i) * (0xFFFFFFFFu / kDraws + 1);
        sum += static_cast<double>(decode_fp8(format, encode_fp8_stochastic(format, value, random)));
      }
      // The random words divide a gap into 2^12 steps. A gap is at most a quarter of the value, or the smallest unit.
      const double gap = std::max(unit, 0.25 * std::fabs(x));
      EXPECT_NEAR(sum / kDraws, static_cast<double>(value), gap / kDraws) << x;
    }
    EXPECT_EQ(encode_fp8_stochastic(format, std::nanf(""), 0), kFp8Nan);
    EXPECT_EQ(encode_fp8_stochastic(format, -HUGE_VALF, 0xFFFFFFFFu), fp8_layout(format).max_code | 0x80);
    EXPECT_EQ(encode_fp8_stochastic(format, fp8_max(format) * 1.01f, 0xFFFFFFFFu), fp8_layout(format).max_code);
    EXPECT_EQ(encode_fp8_stochastic(format, 0.0f, 0xFFFFFFFFu), 0);
  }
}

TEST(E8m0, DecodesEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(decode_e8m0(static_cast<std::uint8_t>(code))), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(static_cast<double>(e8m0_reciprocal(static_cast<std::uint8_t>(code))), std::ldexp(1.0, 127 - code)) << code;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(0xFF)));
  EXPECT_TRUE(std::isnan(e8m0_reciprocal(0xFF)));
}

TEST(E8m0, RoundsUp) {
  for (int code = 0; code < 255; ++code) {
    const float power = decode_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(encode_e8m0_up(power), code);
    EXPECT_EQ(encode_e8m0_up(std::nextafter(power, HUGE_VALF)), std::min(code + 1, 254)) << code;
    if (code > 0) {
      EXPECT_EQ(encode_e8m0_up(std::nextafter(power, 0.0f)), code) << code;
    }
  }
  EXPECT_EQ(encode_e8m0_up(0.0f), 0x00);
  EXPECT_EQ(encode_e8m0_up(std::numeric_limits<float>::denorm_min()), 0x00);
  EXPECT_EQ(encode_e8m0_up(HUGE_VALF), 0xFE);
  EXPECT_EQ(encode_e8m0_up(std::nanf("")), 0xFF);
}

}  // namespace
}  // namespace octet
