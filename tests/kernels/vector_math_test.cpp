#include "octet/kernels/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "octet/base/rng.h"

namespace octet {
namespace {

using kernels::exp_of;

// Returns the distance in units in the last place of the correctly rounded result.
template <class T>
double distance(T actual, long double exact) {
  constexpr int kDigits = std::numeric_limits<T>::digits, kSmallest = std::numeric_limits<T>::min_exponent;
  const int exponent = exact > 0 ? std::max(std::ilogb(exact) + 1, kSmallest) : kSmallest;
  return static_cast<double>(std::abs(static_cast<long double>(actual) - exact) / std::scalbn(1.0L, exponent - kDigits));
}

TEST(VectorMath, ExpIsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42B20000u; bits += 997) {  // up to x = 89
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const long double exact = std::exp(static_cast<long double>(x));
      if (exact > static_cast<long double>(std::numeric_limits<float>::max())) continue;
      ASSERT_LE(distance(exp_of(x), exact), 2) << x;
      worst = std::max(worst, distance(exp_of(x), exact));
    }
  }
  EXPECT_GT(worst, 0.4);  // shows that the loop compared something
  for (double x = -745; x < 709.7; x += 0.0171) ASSERT_LE(distance(exp_of(x), std::exp(static_cast<long double>(x))), 2) << x;
}

template <class T>
void expect_special_exps() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(exp_of(T(0)), T(1));
  EXPECT_EQ(exp_of(-T(0)), T(1));
  EXPECT_EQ(exp_of(-kInfinity), T(0));
  EXPECT_EQ(exp_of(kInfinity), kInfinity);
  EXPECT_EQ(exp_of(T(1e30)), kInfinity);
  EXPECT_EQ(exp_of(T(-1e30)), T(0));
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<T>::quiet_NaN())));
  EXPECT_EQ(kernels::sigmoid(kInfinity), T(1));
  EXPECT_EQ(kernels::sigmoid(-kInfinity), T(0));
  EXPECT_EQ(kernels::sigmoid(T(0)), T(0.5));
}

TEST(VectorMath, ExpOfSpecialValues) {
  expect_special_exps<float>();
  expect_special_exps<double>();
  EXPECT_GT(exp_of(-103.0f), 0.0f);  // results that are subnormal are not flushed to zero
  EXPECT_GT(exp_of(-745.0), 0.0);
}

// The bits of an element do not depend on its place in a row. The bits of a sum do not depend on the row's address.
TEST(VectorMath, ResultsDoNotDependOnAlignmentOrTails) {
  std::vector<float> x(200), y(200), z(200);
  const Rng rng(3, RngStream::test);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(rng.normal(i)) * 5;
  for (std::int64_t begin = 0; begin < 20; ++begin) {
    for (const std::int64_t n : {0, 1, 7, 15, 16, 17, 33, 64, 100}) {
      kernels::exp_row(y.data() + begin, x.data() + begin, n);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y[static_cast<std::size_t>(begin + i)], exp_of(x[static_cast<std::size_t>(begin + i)])) << begin << " " << n;
      }
      std::copy_n(x.begin() + begin, n, z.begin());
      ASSERT_EQ(kernels::sum_row(x.data() + begin, n), kernels::sum_row(z.data(), n));
      ASSERT_EQ(kernels::sum_exp_row(x.data() + begin, n, 1.0f), kernels::exp_and_sum_row(z.data(), n, 1.0f));
      double sum = 0, magnitude = 0;
      float largest = -std::numeric_limits<float>::infinity();
      for (std::int64_t i = begin; i < begin + n; ++i) {
        const float value = x[static_cast<std::size_t>(i)];
        sum += static_cast<double>(value);
        magnitude += static_cast<double>(std::abs(value));
        largest = std::max(largest, value);
      }
      ASSERT_NEAR(static_cast<double>(kernels::sum_row(x.data() + begin, n)), sum, static_cast<double>(n) * 0x1p-24 * magnitude);
      ASSERT_EQ(kernels::max_row(x.data() + begin, n), largest);
      ASSERT_EQ(kernels::max_row(x.data() + begin, n, 100.0f), 100.0f);
    }
  }
}

TEST(VectorMath, RowsOfBf16HaveTheBitsOfTheScalarConversion) {
  std::vector<BFloat16> all(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) all[i] = BFloat16::from_bits(static_cast<std::uint16_t>(i));
  std::vector<float> decoded(all.size());
  kernels::load_row(decoded.data(), all.data(), 65536);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded[i]), std::uint32_t{all[i].bits} << 16) << i;
  }
  // The values around every BF16: ties, their neighbours and NaN.
  for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    std::vector<float> x(all.size());
    for (std::uint32_t i = 0; i < 65536; ++i) x[i] = std::bit_cast<float>((i << 16) | low);
    std::vector<BFloat16> rounded(all.size());
    kernels::store_row(rounded.data(), x.data(), 65536);
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(rounded[i].bits, BFloat16(x[i]).bits) << i << " " << low;
  }
}

}  // namespace
}  // namespace octet
