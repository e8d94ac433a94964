// Error bounds and their derivations. Tests take their tolerances from here instead of using literal numbers.
//
// A format with p significant bits (including the hidden bit) has the unit roundoff u = 2^-p. Rounding x to nearest in the normal
// range changes x by at most u |x|: half a unit in the last place, relative to the smallest magnitude of the binade.
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

// The distance between neighbouring FP8 subnormals, and between zero and the smallest one: 2^(1 - bias - mantissa bits).
constexpr double subnormal_unit(Fp8Format format) { return format == Fp8Format::e4m3 ? 0x1p-9 : 0x1p-16; }

// gamma_n = n u / (1 - n u) bounds |prod (1 + d_i)^(+-1) - 1| for n factors with |d_i| <= u (Higham, "Accuracy and Stability of
// Numerical Algorithms", 2nd ed., Lemma 3.1). The lemma needs n u < 1; otherwise the function returns infinity.
constexpr double gamma(double n, double unit_roundoff) {
  const double nu = n * unit_roundoff;
  return nu < 1.0 ? nu / (1.0 - nu) : HUGE_VAL;
}

// Bounds |computed - exact| of a dot product of length k in FP32, summed in any order, with or without FMA. Each term undergoes
// at most one rounding of its product and k - 1 roundings of sums, so the error is at most gamma_k * sum |a_i b_i| (Higham,
// section 3.1). `roundings` counts the further roundings of each result (scales, an addend, ...). Products of FP8 or BF16
// operands are exact in FP32; the bound does not make use of this.
constexpr double dot_error_bound(std::int64_t k, double sum_of_magnitudes, int roundings = 0) {
  return gamma(static_cast<double>(k + roundings), kUnitRoundoffF32) * sum_of_magnitudes;
}

// The same where the tiles of a processor compute (kernels/tiles/tile_kernel.h): each operand, product and sum of a magnitude below
// 2^-126 counts as 0. That is at most 2^-126 for each of k additions, k / 32 sums of a tile and as many of tiles; operands below
// 2^-126 are worth at most 2^-126 times the largest magnitude of the other operand, which is 1 unless the caller says more.
constexpr double tile_dot_error_bound(std::int64_t k, double sum_of_magnitudes, int roundings = 0, double largest_operand = 1) {
  const double flushed = static_cast<double>(k) * 0x1p-126;
  return dot_error_bound(k, sum_of_magnitudes, roundings) + flushed * (1 + 2.0 / 32 + 2 * largest_operand);
}

// Bounds |decode(encode(x * scale)) / scale - x| if |x * scale| is at most the format's largest value.
// The product x * scale is rounded to FP32 (unit roundoff u32) and then to FP8. The FP8 rounding error
// is at most u |x * scale| in the normal range and half a subnormal unit below it. Computing scale_inv
// and multiplying by it adds two FP32 roundings of a value of at most (1 + u)(1 + u32) |x|.
constexpr double cast_error_bound(Fp8Format format, double x, double scale) {
  const double magnitude = x < 0 ? -x : x;
  const double relative = unit_roundoff(format) * magnitude;
  const double absolute = 0.5 * subnormal_unit(format) / scale;
  return (relative > absolute ? relative : absolute) + gamma(3, kUnitRoundoffF32) * (1.0 + unit_roundoff(format)) * magnitude +
         absolute * gamma(3, kUnitRoundoffF32);
}

// An interval for a relative root-mean-square error sqrt(sum error^2 / sum value^2).
struct Band {
  double low, high;
};

// The relative RMS error of rounding one operand to nearest. Assumes that the values spread smoothly over many codes and that
// most of their energy lies in the normal range. In the binade [2^e, 2^(e+1)) neighbouring codes are d = 2^(e+1-p) apart and the
// error is uniform in [-d/2, d/2]. Its mean square is d^2 / 12 = 4^(e+1-p) / 12; the mean square of the values lies between 4^e
// and 4^(e+1). The ratio of the two lies between 4^-p / 12 and 4^(1-p) / 12 in every binade, hence in any mixture of binades:
//   2^-p / sqrt(12) <= relative RMS error <= 2^(1-p) / sqrt(12)
// E4M3 (p = 4): 1.8% to 3.6%; E5M2 (p = 3): 3.6% to 7.2%; BF16 (p = 8): 0.11% to 0.23%. A uniform density within a binade
// gives 2^(1-p) / sqrt(28). The lower bound does not hold for values that the format represents exactly (zeros, powers of two).
inline Band rounding_noise(double unit_roundoff) {
  return {unit_roundoff / std::sqrt(12.0), 2.0 * unit_roundoff / std::sqrt(12.0)};
}

// The relative RMS (Frobenius) distance of a product of quantised operands from the product of the original operands,
//   y_ij = sum_k a_ik b_jk. The operands' relative RMS errors r_a and r_b are independent and have mean zero:
//   E sum_ij (y'_ij - y_ij)^2 = (r_a^2 + r_b^2 + r_a^2 r_b^2) sum_ijk a_ik^2 b_jk^2.
// Dividing by sum_ij y_ij^2 gives the distance sqrt((r_a^2 + r_b^2 + r_a^2 r_b^2) / coherence) with
//   coherence = sum_ij y_ij^2 / sum_k (sum_i a_ik^2)(sum_j b_jk^2).
// The coherence is 1 for operands of random sign, for any K, and up to K for terms of one sign (Cauchy-Schwarz). The test
// computes it. The sampled mean square deviates from its expectation. The square of a uniform error has a relative variance of
// 4/5; the values that weight it have relative fourth moments of about 3. Over n independent errors (elements of the smaller
// operand), four standard deviations are therefore 4 sqrt(2.4 / n). For n >= 69 this is below 3/4 of the mean square, so a
// factor of 2 of the RMS on either side covers it. A BF16 path has 16 times (E4M3) or 32 times (E5M2) less noise. It falls below
// the band, whose ends differ by a factor of 8.
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
