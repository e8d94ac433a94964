// The 8-bit floating-point formats of "FP8 Formats for Deep Learning"
// (Micikevicius et al., 2022) and of the OCP MX specification.
//   E4M3 (e4m3fn): 1 sign, 4 exponent, 3 mantissa bits; bias 7, largest finite 448, NaN 0x7F and 0xFF, no infinity
//   E5M2:          1 sign, 5 exponent, 2 mantissa bits; bias 15, largest finite 57344, infinity and NaN
//   E8M0:          8 exponent bits, value 2^(e - 127), NaN 0xFF
// Encoding saturates: a value beyond the largest finite value, including infinity, becomes the largest finite value with its
// sign. NaN of either sign becomes 0x7F in both formats. Subnormals are kept.
#pragma once

#include <bit>
#include <cstdint>

namespace octet {

enum class Fp8Format : std::uint8_t { e4m3, e5m2 };

struct Fp8Layout {
  int mantissa_bits;
  int bias;
  std::uint8_t max_code;  // code of the largest finite value
};

constexpr Fp8Layout fp8_layout(Fp8Format format) {
  return format == Fp8Format::e4m3 ? Fp8Layout{3, 7, 0x7E} : Fp8Layout{2, 15, 0x7B};
}
constexpr float fp8_max(Fp8Format format) { return format == Fp8Format::e4m3 ? 448.0f : 57344.0f; }
constexpr std::uint8_t kFp8Nan = 0x7F;

namespace detail {

// A rounding mode: the amount that is added to the significand before its lowest `shift` bits are dropped.
struct NearestEven {
  constexpr std::uint32_t increment(std::uint32_t kept, int shift) const {
    return (std::uint32_t{1} << (shift - 1)) - 1u + (kept & 1u);
  }
};
struct Stochastic {
  std::uint32_t random;
  constexpr std::uint32_t increment(std::uint32_t, int shift) const { return random >> (32 - shift); }
};

template <class Rounding>
constexpr std::uint8_t encode_fp8(Fp8Format format, float value, Rounding rounding) {
  const Fp8Layout layout = fp8_layout(format);
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return kFp8Nan;
  const std::uint32_t sign = (u >> 24) & 0x80u;
  if (magnitude == 0x7F800000u) return static_cast<std::uint8_t>(sign | layout.max_code);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int smallest = 1 - layout.bias;  // exponent of the smallest normal
  int shift = 23 - layout.mantissa_bits;
  // A normal number is rounded together with its exponent, so that a carry increments the exponent. A subnormal number is rounded
  // as a multiple of the subnormal unit.
  std::uint32_t significand = magnitude;
  std::uint32_t base = static_cast<std::uint32_t>(127 - layout.bias) << layout.mantissa_bits;
  if (exponent < smallest) {
    base = 0;
    significand = (magnitude & 0x007FFFFFu) | (magnitude >= 0x00800000u ? 0x00800000u : 0u);
    shift += smallest - exponent;
    // A shift by more than 31 bits is not possible. The significand is shifted right first instead: it is far below half a unit,
    // and stochastic rounding keeps its probability.
    if (shift > 31) {
      significand = shift > 62 ? 0u : significand >> (shift - 31);
      shift = 31;
    }
  }
  const std::uint32_t code = ((significand + rounding.increment(significand >> shift, shift)) >> shift) - base;
  return static_cast<std::uint8_t>(sign | (code > layout.max_code ? layout.max_code : code));
}

}  // namespace detail

// Rounds to nearest, ties to even, and saturates.
constexpr std::uint8_t encode_fp8(Fp8Format format, float value) {
  return detail::encode_fp8(format, value, detail::NearestEven{});
}

// Stochastic rounding: rounds up in magnitude with a probability equal to the discarded fraction (to within 2^-31) and saturates.
// `random` is uniform over 32 bits.
constexpr std::uint8_t encode_fp8_stochastic(Fp8Format format, float value, std::uint32_t random) {
  return detail::encode_fp8(format, value, detail::Stochastic{random});
}

constexpr float decode_fp8(Fp8Format format, std::uint8_t code) {
  const Fp8Layout layout = fp8_layout(format);
  const std::uint32_t sign = std::uint32_t{code & 0x80u} << 24;
  const std::uint32_t magnitude = code & 0x7Fu;
  if (magnitude > layout.max_code) {
    const bool infinite = format == Fp8Format::e5m2 && magnitude == 0x7C;
    return std::bit_cast<float>(sign | (infinite ? 0x7F800000u : 0x7FC00000u));
  }
  const std::uint32_t exponent = magnitude >> layout.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1u << layout.mantissa_bits) - 1u);
  if (exponent == 0) {
    const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - layout.bias - layout.mantissa_bits) << 23);
    const float value = static_cast<float>(mantissa) * unit;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + static_cast<std::uint32_t>(127 - layout.bias)) << 23) |
                              (mantissa << (23 - layout.mantissa_bits)));
}

// The value of an E8M0 code: 2^(code - 127), NaN for 0xFF.
constexpr std::uint8_t kE8m0Nan = 0xFF;
constexpr float decode_e8m0(std::uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(0x7FC00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, an FP32 subnormal
  return std::bit_cast<float>(std::uint32_t{code} << 23);
}

// The code of the smallest E8M0 value that is at least `value` (not
// negative), at most 0xFE. NaN gives 0xFF, infinity 0xFE, zero 0x00.
constexpr std::uint8_t encode_e8m0_up(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
  if (u > 0x7F800000u) return kE8m0Nan;
  if (u == 0x7F800000u) return 0xFE;
  const std::uint32_t exponent = u >> 23;
  const std::uint32_t mantissa = u & 0x7FFFFFu;
  // A subnormal number up to 2^-127 has code 0. Larger ones have code 1, which is 2^-126.
  if (exponent == 0) return mantissa > 0x400000u ? 1 : 0;
  const std::uint32_t up = exponent + (mantissa > 0 ? 1u : 0u);
  return static_cast<std::uint8_t>(up > 0xFE ? 0xFE : up);
}

// The exact reciprocal of an E8M0 scale, by which a value is multiplied before the cast. NaN gives NaN.
constexpr float e8m0_reciprocal(std::uint8_t code) {
  return code == kE8m0Nan ? decode_e8m0(code) : decode_e8m0(static_cast<std::uint8_t>(254u - code));
}

}  // namespace octet
