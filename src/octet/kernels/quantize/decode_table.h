// The values of all 256 codes, for CPU kernels that read FP8. table[code] is decode_fp8(format, code), or decode_e8m0(code) for
// E8M0. A table has 1 KiB and is aligned to a cache line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "octet/numerics/float8.h"

namespace octet::kernels {

struct alignas(64) DecodeTable {
  std::array<float, 256> values{};
  constexpr float operator[](std::uint8_t code) const { return values[code]; }
  constexpr const float* data() const { return values.data(); }
};

namespace detail {

constexpr DecodeTable make_decode_table(Fp8Format format) {
  DecodeTable table;
  for (std::size_t code = 0; code < 256; ++code) table.values[code] = decode_fp8(format, static_cast<std::uint8_t>(code));
  return table;
}
constexpr DecodeTable make_e8m0_table() {
  DecodeTable table;
  for (std::size_t code = 0; code < 256; ++code) table.values[code] = decode_e8m0(static_cast<std::uint8_t>(code));
  return table;
}

}  // namespace detail

inline constexpr DecodeTable kDecodeE4M3 = detail::make_decode_table(Fp8Format::e4m3);
inline constexpr DecodeTable kDecodeE5M2 = detail::make_decode_table(Fp8Format::e5m2);
inline constexpr DecodeTable kDecodeE8M0 = detail::make_e8m0_table();

constexpr const DecodeTable& decode_table(Fp8Format format) { return format == Fp8Format::e4m3 ? kDecodeE4M3 : kDecodeE5M2; }

}  // namespace octet::kernels
