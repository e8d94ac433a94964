#include "support/bounds.h"

#include <gtest/gtest.h>

#include <vector>

#include "octet/base/rng.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/scale.h"

namespace octet {
namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

TEST(Bounds, UnitRoundoffsAreHalfTheGapAboveOne) {
  for (const Fp8Format format : kFormats) {
    const auto one = encode_fp8(format, 1.0f);
    EXPECT_EQ((decode_fp8(format, static_cast<std::uint8_t>(one + 1)) - 1.0f) / 2, static_cast<float>(unit_roundoff(format)));
    EXPECT_EQ(decode_fp8(format, 1), static_cast<float>(subnormal_unit(format)));
  }
  EXPECT_EQ((static_cast<float>(BFloat16::from_bits(0x3F81)) - 1.0f) / 2, static_cast<float>(kUnitRoundoffBf16));
}

TEST(Bounds, GammaGrowsAndEnds) {
  EXPECT_EQ(gamma(0, kUnitRoundoffF32), 0.0);
  EXPECT_GT(gamma(100, kUnitRoundoffF32), 100 * kUnitRoundoffF32);
  EXPECT_EQ(gamma(16, 0x1p-4), HUGE_VAL);
}

TEST(Bounds, CastErrorHoldsForEveryBf16AndIsReached) {
  for (const Fp8Format format : kFormats) {
    for (const float scale : {1.0f, 0.37f, 1000.0f}) {
      const float scale_inv = 1.0f / scale;
      double closest = 0;
      for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
        const float x = static_cast<float>(BFloat16::from_bits(static_cast<std::uint16_t>(bits)));
        if (x * scale > fp8_max(format)) continue;
        const double error = static_cast<double>(decode_fp8(format, encode_fp8(format, x * scale)) * scale_inv - x);
        const double bound = cast_error_bound(format, static_cast<double>(x), static_cast<double>(scale));
        ASSERT_LE(std::fabs(error), bound) << x;
        closest = std::max(closest, std::fabs(error) / bound);
      }
      EXPECT_GT(closest, 0.9);  // shows that the bound is not loose
    }
  }
}

std::vector<float> normals(std::size_t n, std::uint32_t subject) {
  const Rng rng(7, RngStream::test, subject);
  std::vector<float> result(n);
  for (std::size_t i = 0; i < n; ++i) result[i] = static_cast<float>(BFloat16(static_cast<float>(rng.normal(i))));
  return result;
}

std::vector<float> rounded(const std::vector<float>& x, Fp8Format format) {
  float amax = 0;
  for (const float v : x) amax = max_magnitude(amax, v);
  const float scale = scale_from_amax(amax, {.format = format});
  std::vector<float> result;
  for (const float v : x) result.push_back(decode_fp8(format, encode_fp8(format, v * scale)) / scale);
  return result;
}

// The error of a product of quantised operands lies in the band. The error with BF16 operands lies below it.
TEST(Bounds, ProductNoiseHoldsFp8AndExcludesBf16) {
  const std::size_t m = 48, n = 40;
  for (const std::size_t k : {16u, 64u, 512u}) {
    for (const float mean : {0.0f, 3.0f}) {  // with a mean, the terms of a sum have the same sign
      std::vector<float> a = normals(m * k, 1), b = normals(n * k, 2);
      for (float& v : a) v += mean;
      for (float& v : b) v += mean;
      double norm = 0, energy = 0;
      const auto distance = [&](const std::vector<float>& qa, const std::vector<float>& qb) {
        double noise = 0;
        norm = energy = 0;
        for (std::size_t i = 0; i < m; ++i) {
          for (std::size_t j = 0; j < n; ++j) {
            double y = 0, q = 0;
            for (std::size_t t = 0; t < k; ++t) {
              const double term = static_cast<double>(a[i * k + t]) * static_cast<double>(b[j * k + t]);
              y += term;
              energy += term * term;
              q += static_cast<double>(qa[i * k + t]) * static_cast<double>(qb[j * k + t]);
            }
            norm += y * y;
            noise += (q - y) * (q - y);
          }
        }
        return std::sqrt(noise / norm);
      };
      std::vector<float> ba = a, bb = b;
      for (float& v : ba) v = static_cast<float>(BFloat16(v));
      for (float& v : bb) v = static_cast<float>(BFloat16(v));
      for (const Fp8Format format : kFormats) {
        const double fp8 = distance(rounded(a, format), rounded(b, Fp8Format::e4m3));
        const Band band = product_noise(format, Fp8Format::e4m3, norm / energy);
        EXPECT_GT(fp8, band.low) << "K " << k << " mean " << mean;
        EXPECT_LT(fp8, band.high) << "K " << k << " mean " << mean;
        EXPECT_LT(distance(ba, bb), band.low) << "K " << k << " mean " << mean;
      }
    }
  }
}

}  // namespace
}  // namespace octet
