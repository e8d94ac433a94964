// Standard normal numbers from random words by the Box-Muller transform. It uses only F64 additions, multiplications and
// divisions, which IEEE 754 rounds the same way on every machine as long as the compiler does not contract them to FMA. A CPU
// and a GPU therefore draw the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <numbers>

namespace octet {

// ln(x) for a positive normal x, within 1 ulp. The polynomial is that of fdlibm's e_log.c.
constexpr double portable_log(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  // x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2))
  const std::int64_t n = static_cast<std::int64_t>(bits - std::bit_cast<std::uint64_t>(0.5 * std::numbers::sqrt2)) >> 52;
  const double f = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(n) << 52)) - 1.0;
  const double s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f, exponent = static_cast<double>(n);
  double r = 1.479819860511658591e-01;
  r = r * z + 1.531383769920937332e-01;
  r = r * z + 1.818357216161805012e-01;
  r = r * z + 2.222219843214978396e-01;
  r = r * z + 2.857142874366239149e-01;
  r = r * z + 3.999999999940941908e-01;
  r = r * z + 6.666666666666735130e-01;
  r = r * z;
  return exponent * kLn2High - ((half_square - (s * (half_square + r) + exponent * kLn2Low)) - f);
}

// cos(2 pi * turn / 2^32). The polynomials are those of fdlibm's k_cos.c and k_sin.c.
constexpr double portable_cos(std::uint32_t turn) {
  const std::uint32_t quadrant =
      (turn + 0x20000000u) >> 30;  // nearest multiple of a quarter turn; the remainder is at most 45 degrees
  const double x = static_cast<double>(static_cast<std::int32_t>(turn - (quadrant << 30))) * (std::numbers::pi * 0x1p-31);
  const double z = x * x;
  double result = 0;
  if (quadrant % 2 == 0) {
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    const double half = 0.5 * z, w = 1.0 - half;
    result = w + (((1.0 - w) - half) + z * (z * c));
  } else {
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    result = x + (x * z) * s;
  }
  return quadrant == 1 || quadrant == 2 ? -result : result;
}

// A standard normal number is sqrt(radius_squared) * cosine. IEEE 754 also defines how a square root is rounded.
struct BoxMuller {
  double radius_squared, cosine;
};
constexpr BoxMuller box_muller(std::uint32_t word0, std::uint32_t word1) {
  // The argument of the logarithm lies in (0, 1], so it is never zero.
  return {-2.0 * portable_log((static_cast<double>(word0) + 1.0) * 0x1p-32), portable_cos(word1)};
}

}  // namespace octet
