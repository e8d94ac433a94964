// The 16-bit floating-point types as storage types: a bit pattern with conversions from
// and to FP32. Arithmetic is done in FP32. Conversion from FP32 rounds to nearest even
// and keeps subnormals. NaN becomes a quiet NaN; values beyond the range become infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace octet {

// BF16: 1 sign, 8 exponent and 7 mantissa bits, the upper half of an FP32.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(round(value)) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  constexpr bool operator==(const BFloat16&) const = default;

  static constexpr BFloat16 from_bits(std::uint16_t bits) {
    BFloat16 result;
    result.bits = bits;
    return result;
  }
  // Stochastic rounding; `random` is uniform in [0, 2^16). The result is the neighbour of larger magnitude with probability
  // (|value| - |smaller|) / (|larger| - |smaller|), where smaller and larger are the two BF16 neighbours of `value`. Above the
  // largest finite BF16 the larger neighbour is infinity. Infinity and NaN are kept.
  static constexpr BFloat16 stochastic(float value, std::uint32_t random) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7F800000u) == 0x7F800000u) return BFloat16(value);
    return from_bits(static_cast<std::uint16_t>((u + (random & 0xFFFFu)) >> 16));
  }

 private:
  static constexpr std::uint16_t round(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
    return static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(BFloat16) == 2);

// FP16 (IEEE binary16): 1 sign, 5 exponent and 10 mantissa bits. Used only to read and write files.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  constexpr explicit Float16(float value) : bits(round(value)) {}
  constexpr explicit operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
    const std::uint32_t mantissa = bits & 0x3FFu;
    if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  constexpr bool operator==(const Float16&) const = default;

 private:
  static constexpr std::uint16_t round(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and above: infinity
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
      const std::uint32_t exponent = magnitude >> 23;
      if (exponent < 102) return static_cast<std::uint16_t>(sign);  // below 2^-25
      const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
      const std::uint32_t shift = 126u - exponent;
      const std::uint32_t half = (1u << (shift - 1)) - 1u + ((mantissa >> shift) & 1u);
      return static_cast<std::uint16_t>(sign | ((mantissa + half) >> shift));
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
};
static_assert(sizeof(Float16) == 2);

}  // namespace octet
