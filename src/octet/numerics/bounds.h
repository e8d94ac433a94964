// Error bounds with their derivations: the tolerances of tests, never literals.
//
// A format with p significant bits (the hidden one included) has the unit roundoff u = 2^-p: rounding to nearest in the normal
// range moves x by at most u |x| (half a unit in the last place over the smallest magnitude of the binade).
#pragma once

#include <cmath>
#include <cstdint>

#include "octet/numerics/float8.h"

namespace octet {

constexpr double kUnitRoundoffF64 = 0x1p-53;
constexpr double kUnitRoundoffF32 = 0x1p-24;
constexpr double kUnitRoundoffF16 = 0x1p-11;
constexpr double kUnitRoundoffBf16 = 0x1p-8;
constexpr double unit_roundoff(Fp8Format format) { return format == Fp8Format::e4m3 ? 0x1p-4 : 0x1p-3; }

// The distance between two FP8 subnormals, and between zero and the first: 2^(1 - bias - mantissa bits).
constexpr double subnormal_unit(Fp8Format format) { return format == Fp8Format::e4m3 ? 0x1p-9 : 0x1p-16; }

// gamma_n = n u / (1 - n u) bounds |prod (1 + d_i)^(+-1) - 1| for n factors with |d_i| <= u (Higham, "Accuracy and Stability of
// Numerical Algorithms", 2nd ed., Lemma 3.1). Infinite where n u >= 1: no bound holds there.
constexpr double gamma(double n, double unit_roundoff) {
  const double nu = n * unit_roundoff;
  return nu < 1.0 ? nu / (1.0 - nu) : HUGE_VAL;
}

// |computed - exact| of a dot product of length k in FP32, in any order, with or without FMA: each term meets at most one rounded
// product and k - 1 additions, so the error is at most gamma_k * sum |a_i b_i| (Higham, section 3.1). Products of FP8 or BF16
// operands are exact in FP32, which the bound does not use. `roundings` is what else each result meets (scales, an addend, ...).
constexpr double dot_error_bound(std::int64_t k, double sum_of_magnitudes, int roundings = 0) {
  return gamma(static_cast<double>(k + roundings), kUnitRoundoffF32) * sum_of_magnitudes;
}

// |decode(encode(x * scale)) / scale - x| for |x * scale| up to the format's largest value. x * scale is rounded to FP32 (u32),
// then to FP8: u of itself in the normal range, half a subnormal unit below it; scale_inv and the product with it add two more
// FP32 roundings of a value of at most (1 + u)(1 + u32) |x|.
constexpr double cast_error_bound(Fp8Format format, double x, double scale) {
  const double magnitude = x < 0 ? -x : x;
  const double relative = unit_roundoff(format) * magnitude;
  const double absolute = 0.5 * subnormal_unit(format) / scale;
  return (relative > absolute ? relative : absolute) + gamma(3, kUnitRoundoffF32) * (1.0 + unit_roundoff(format)) * magnitude +
         absolute * gamma(3, kUnitRoundoffF32);
}

// An interval for a relative root-mean-square error: sqrt(sum error^2 / sum value^2).
struct Band {
  double low, high;
};

// Rounding of one operand to nearest, where its values spread smoothly over many codes and most of their energy is in the
// normal range. In the binade [2^e, 2^(e+1)) the codes are d = 2^(e+1-p) apart and the error is uniform in [-d/2, d/2], so its
// mean square is d^2 / 12 = 4^(e+1-p) / 12, while the mean square of the values lies between 4^e and 4^(e+1). The ratio of the
// two is between 4^-p / 12 and 4^(1-p) / 12 in every binade, hence in any mixture of binades:
//   2^-p / sqrt(12) <= relative RMS error <= 2^(1-p) / sqrt(12)
// E4M3 (p = 4): 1.8 % to 3.6 %; E5M2 (p = 3): 3.6 % to 7.2 %; BF16 (p = 8): 0.11 % to 0.23 %. Uniform density in a binade gives
// 2^(1-p) / sqrt(28). Values that are codes themselves (zeros, powers of two) have no error: the lower edge is not for them.
inline Band rounding_noise(double unit_roundoff) {
  return {unit_roundoff / std::sqrt(12.0), 2.0 * unit_roundoff / std::sqrt(12.0)};
}

// Relative RMS (Frobenius) distance of a product of quantised operands from the product of the operands themselves,
//   y_ij = sum_k a_ik b_jk, with relative RMS errors r_a, r_b of the operands, independent and of mean zero:
//   E sum_ij (y'_ij - y_ij)^2 = (r_a^2 + r_b^2 + r_a^2 r_b^2) sum_ijk a_ik^2 b_jk^2,
// so that after division by sum_ij y_ij^2 the distance is sqrt((r_a^2 + r_b^2 + r_a^2 r_b^2) / coherence) with
//   coherence = sum_ij y_ij^2 / sum_k (sum_i a_ik^2)(sum_j b_jk^2):
// 1 for operands of random sign, whatever K is; up to K (Cauchy-Schwarz) for terms of one sign; the test computes it.
// The sampled mean square deviates from its expectation: a uniform error's square has a relative variance of 4/5, weighted by
// values with relative fourth moments of about 3, so over n independent errors (elements of the smaller operand) four standard
// deviations are 4 sqrt(2.4 / n). From n = 69 on this is below 3/4 of the mean square, so a factor of 2 of the RMS on either side
// holds it. A BF16 path is 16 times (E4M3) or 32 times (E5M2) less noisy and falls below the lower edge, since the band spans 8.
inline Band product_noise(double unit_roundoff_a, double unit_roundoff_b, double coherence) {
  const Band a = rounding_noise(unit_roundoff_a), b = rounding_noise(unit_roundoff_b);
  const auto distance = [coherence](double ra, double rb) {
    return std::sqrt((ra * ra + rb * rb + ra * ra * rb * rb) / coherence);
  };
  return {0.5 * distance(a.low, b.low), 2.0 * distance(a.high, b.high)};
}
inline Band product_noise(Fp8Format a, Fp8Format b, double coherence) {
  return product_noise(unit_roundoff(a), unit_roundoff(b), coherence);
}

}  // namespace octet
