// Computes the scale of a tensor, row or block from its amax, the largest magnitude in it.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "octet/numerics/float8.h"
#include "octet/numerics/recipe.h"

namespace octet {

// The larger magnitude; NaN if either is NaN. Magnitudes are compared
// as integers: the bits of every NaN are above those of infinity.
constexpr float max_magnitude(float a, float b) {
  const std::uint32_t x = std::bit_cast<std::uint32_t>(a) & 0x7FFFFFFFu;
  const std::uint32_t y = std::bit_cast<std::uint32_t>(b) & 0x7FFFFFFFu;
  return std::bit_cast<float>(x > y ? x : y);
}

constexpr bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) != 0x7F800000u; }

constexpr float kBf16Max = 0x1.FEp127f;

namespace detail {

// top / amax, correctly rounded; an infinite quotient becomes `largest`. `top` is at most 2^127. A constant expression must not
// contain a division that overflows, so a division in F64 decides first. Its decision is exact: the quotient of two FP32 numbers
// either equals FP32's overflow threshold 2^128 - 2^103 or differs from it by a relative amount of more than 2^-49.
constexpr float saturating_quotient(float top, float amax, float largest) {
  const bool overflows = amax < 1.0f && static_cast<double>(top) / static_cast<double>(amax) >= 0x1.FFFFFFp127;
  return overflows ? largest : top / amax;
}

}  // namespace detail

// The scale of current scaling (tensor, row or block), fp8_max / amax, correctly rounded. An amax below epsilon is replaced by
// epsilon. If amax is 0, infinite or NaN, the scale is 1. An infinite quotient becomes FLT_MAX (tensor, row) or BF16's largest
// finite value (block). power_of_2 rounds the scale down to a power of two.
constexpr float scale_from_amax(float amax, const QuantSpec& spec) {
  if (amax < spec.epsilon) amax = spec.epsilon;
  if (amax == 0.0f || !is_finite(amax)) return 1.0f;
  const float largest = is_block(spec.tile) ? kBf16Max : std::numeric_limits<float>::max();
  const float scale = detail::saturating_quotient(fp8_max(spec.format), amax, largest);
  return spec.power_of_2 ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & 0xFF800000u) : scale;
}

// The scale of delayed scaling, fp8_max * 2^-margin / amax. An infinite quotient becomes FLT_MAX. `amax` is finite and positive;
// |margin| <= 64, so that the numerator is a normal number.
constexpr float delayed_scale(float amax, Fp8Format format, int margin) {
  float top = fp8_max(format);
  for (int i = 0; i < margin; ++i) top *= 0.5f;
  for (int i = 0; i > margin; --i) top *= 2.0f;
  return detail::saturating_quotient(top, amax, std::numeric_limits<float>::max());
}

// The E8M0 scale code of OCP MX: amax / 448 rounded up to a power of two, computed as amax times FP32's 1/448. NaN gives 0xFF,
// infinity 0xFE, zero 0x00. The cast multiplies by e8m0_reciprocal of the code.
constexpr std::uint8_t mx_scale_code(float amax) { return encode_e8m0_up(amax * (1.0f / 448.0f)); }

}  // namespace octet
