// Step 3 of the proof in adamw/exact_math_cuda.cuh: a quotient by a shared divisor, in three operations, is correctly rounded.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace octet {
namespace {

// Let a and b be 24-bit significands. Before the last rounding the result differs from a / b by less than 3 x 2^-24 units in the
// last place, so it can only be rounded wrongly if a / b is that near to a midpoint t / 2^e of two floats, t being an odd number
// of 25 bits: a 2^e = t b + c with 0 < |c| < 6. The test solves this for t, for every b, e and c, and also takes c up to 8.
TEST(ExactQuotient, IsRightWhereRoundingIsHard) {
  constexpr std::int64_t kFirst = std::int64_t{1} << 23, kEnd = kFirst << 1;
  constexpr int kFar = 8;
  std::int64_t cases = 0, wrong = 0;
  for (std::int64_t b = kFirst; b < kEnd; ++b) {
    const int zeros = std::countr_zero(static_cast<std::uint64_t>(b));  // c has at least as many, and t is odd: c has no more
    if (1 << zeros > kFar) continue;
    const auto odd = static_cast<std::uint32_t>(b >> zeros);
    std::uint32_t inverse = odd;  // modulo 2^32, by Newton's method
    for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
    const auto divisor = static_cast<float>(b);
    const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(b));
    for (const int e : {24, 25}) {
      const std::int64_t period = std::int64_t{1} << (e - zeros);
      for (int c = -kFar; c <= kFar; ++c) {
        if (c % (1 << zeros) != 0 || (c >> zeros) % 2 == 0) continue;
        const auto first = static_cast<std::int64_t>((static_cast<std::uint32_t>(-(c >> zeros)) * inverse) &
                                                     static_cast<std::uint32_t>(period - 1));
        for (std::int64_t t = first; t < std::int64_t{1} << 25; t += period) {
          const std::int64_t a = (t * b + c) >> e;
          if (t < std::int64_t{1} << 24 || a < kFirst || a >= kEnd) continue;
          ASSERT_EQ((a << e) - t * b, c);
          const auto x = static_cast<float>(a);
          const float quotient = x * reciprocal;
          wrong += std::fma(std::fma(-quotient, divisor, x), reciprocal, quotient) != x / divisor;
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cases, 10'000'000);
}

}  // namespace
}  // namespace octet
