// Packs operands into tiles of BF16. A tile is 16 vectors of 16 pairs of neighbouring k. In tiles of A a vector is a row; in
// tiles of B it is a pair of k, and so holds one pair of each of 16 rows.
//
// `Tiles` has the instructions that g++'s vectors lack:
//   Tiles::widen(codes, out)      32 bytes as 32 uint16
//   Tiles::look_up(table, i, out) table[i % 32] for each of 32 uint16
// Everything here is a template over this set of instructions, so that each file that includes this header has its own functions
// for its own processor, and the linker never takes those of a newer processor for the whole program.
#pragma once

#include <cstdint>
#include <cstring>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

template <class Tiles>
struct TilePacker {
  using Kind = TileOperand::Kind;
  typedef std::uint8_t Codes __attribute__((vector_size(32)));
  typedef std::uint16_t Halves __attribute__((vector_size(64)));  // 32 BF16
  typedef std::uint16_t HalfRow __attribute__((vector_size(32)));
  typedef std::uint32_t Pairs __attribute__((vector_size(64)));  // 16 pairs of BF16, the lower k in the lower half

  static constexpr std::int64_t kTileElements = kTileRows * kTileK;

  // Vectors are passed by reference: g++ warns of results that are vectors which the processor lacks.
  template <class Vector>
  [[gnu::always_inline]] static void load(const void* from, Vector& out) {
    std::memcpy(&out, from, sizeof out);
  }

  // Magnitudes up to 31, among them all subnormals, as bits of BF16. Larger magnitudes are normal numbers.
  template <Kind kKind>
  static constexpr auto kSmall = [] {
    constexpr int kBias = kKind == Kind::e4m3 ? 7 : 15, kMantissaBits = kKind == Kind::e4m3 ? 3 : 2;
    struct {
      std::uint16_t bits[32];
    } result{};
    for (int magnitude = 1; magnitude < 32; ++magnitude) {
      int mantissa = magnitude & ((1 << kMantissaBits) - 1), exponent = magnitude >> kMantissaBits;
      if (exponent > 0) {
        mantissa |= 1 << kMantissaBits;
      } else {
        exponent = 1;
      }
      for (; mantissa < 1 << kMantissaBits; --exponent) mantissa *= 2;
      mantissa &= (1 << kMantissaBits) - 1;
      result.bits[magnitude] = static_cast<std::uint16_t>((exponent - kBias + 127) << 7 | mantissa << (7 - kMantissaBits));
    }
    return result;
  }();

  // The bits of a BF16 of each code, exactly.
  template <Kind kKind>
  [[gnu::always_inline]] static void decode(const Codes& codes, Halves& out) {
    constexpr bool kE4m3 = kKind == Kind::e4m3;
    constexpr std::uint16_t kShift = kE4m3 ? 4 : 5, kRebias = (127 - (kE4m3 ? 7 : 15)) << 7, kLargest = kE4m3 ? 0x7E : 0x7B;
    Halves all{}, table, small{};
    Tiles::widen(codes, all);
    const Halves magnitude = all & 0x7F;
    load(&kSmall<kKind>, table);
    Tiles::look_up(table, magnitude, small);
    const Halves large = (magnitude << kShift) + kRebias;
    const Halves is_large = reinterpret_cast<Halves>(magnitude > std::uint16_t{31});
    const Halves bits = (large & is_large) | (small & ~is_large);
    // Infinity has no mantissa, and NaN keeps that of its code, which is not 0.
    const Halves special = reinterpret_cast<Halves>(magnitude > kLargest) & std::uint16_t{0x7F80};
    out = bits | special | ((all & 0x80) << 8);
  }

  // Finite codes lie between 2^-16 and 2^16, so these factors lead to normal numbers.
  [[gnu::always_inline]] static bool moves_exponent(float scale) { return scale >= 0x1p-110f && scale <= 0x1p110f; }

  // BF16 times a power of two for which moves_exponent holds. 0, infinity and NaN stay.
  [[gnu::always_inline]] static void times(Halves& x, float scale) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    const auto step = static_cast<std::uint16_t>(((bits >> 23) - 127) << 7);
    const Halves magnitude = x & 0x7FFF;
    const Halves moved = reinterpret_cast<Halves>(magnitude - 1 < std::uint16_t{0x7F80 - 1});
    x += moved & step;
  }

  // The same for every power of two and NaN. Results below 2^-126 are cut, not rounded; the tiles take them as 0.
  static void times_any(Halves& x, float scale) {
    for (int i = 0; i < 32; ++i) {
      std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      value *= scale;
      std::memcpy(&bits, &value, sizeof bits);
      x[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }

  // Transposes 16x16 pairs: in each step, vectors `kStep` apart exchange the elements that stand on the wrong side.
  template <int kStep>
  [[gnu::always_inline]] static void exchange(Pairs* rows) {
    for (int i = 0; i < 16; ++i) {
      if (i & kStep) continue;
      const Pairs low = rows[i], high = rows[i + kStep];
      constexpr auto from = [](int lane, bool upper) { return ((lane & kStep) != 0) == upper ? lane : lane ^ kStep; };
      // Lanes 16 to 31 are those of the second vector.
      const auto pick = [&]<int... kLane>(Lanes<kLane...>) {
        rows[i] = __builtin_shufflevector(low, high, (kLane & kStep ? 16 + from(kLane, false) : kLane)...);
        rows[i + kStep] = __builtin_shufflevector(low, high, (kLane & kStep ? 16 + kLane : from(kLane, true))...);
      };
      pick(Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>{});
    }
  }
  template <int...>
  struct Lanes {};

  [[gnu::always_inline]] static void transpose(Pairs* rows) {
    exchange<1>(rows);
    exchange<2>(rows);
    exchange<4>(rows);
    exchange<8>(rows);
  }

  template <class Vector>
  static void load_some(const void* from, std::int64_t bytes, Vector& out) {
    out = Vector{};
    const auto all = static_cast<std::int64_t>(sizeof out);
    if (bytes > 0) std::memcpy(&out, from, static_cast<std::size_t>(bytes < all ? bytes : all));
  }

  // The 16 vectors of a tile that lies within the operand: rows, or pairs of k if K is first. `from` is its first element.
  template <Kind kKind>
  [[gnu::always_inline]] static void load_tile(const void* from, std::int64_t stride, const float* scales,
                                               std::int64_t scales_stride, Pairs* out) {
    for (std::int64_t i = 0; i < 16; ++i) {
      if constexpr (kKind == Kind::bf16_k_first) {
        const std::uint16_t* const line = static_cast<const std::uint16_t*>(from) + 2 * i * stride;
        HalfRow low, high;
        load(line, low);
        load(line + stride, high);
        out[i] = __builtin_convertvector(low, Pairs) | (__builtin_convertvector(high, Pairs) << 16);
      } else if constexpr (kKind == Kind::bf16_k_last) {
        load(static_cast<const std::uint16_t*>(from) + i * stride, out[i]);
      } else {
        Codes codes;
        Halves values;
        load(static_cast<const std::uint8_t*>(from) + i * stride, codes);
        decode<kKind>(codes, values);
        if (scales) times(values, scales[i * scales_stride]);
        out[i] = reinterpret_cast<Pairs>(values);
      }
    }
  }

  // The same for a tile that reaches beyond the operand, where it is 0, or that has a scale for which moves_exponent does not
  // hold.
  template <Kind kKind>
  [[gnu::noinline]] static void load_edge(const void* from, std::int64_t stride, const float* scales, std::int64_t scales_stride,
                                          std::int64_t rows, std::int64_t length, Pairs* out) {
    for (std::int64_t i = 0; i < 16; ++i) {
      out[i] = Pairs{};
      if constexpr (kKind == Kind::bf16_k_first) {
        const std::uint16_t* const line = static_cast<const std::uint16_t*>(from) + 2 * i * stride;
        HalfRow low{}, high{};
        if (2 * i < length) load_some(line, rows * 2, low);
        if (2 * i + 1 < length) load_some(line + stride, rows * 2, high);
        out[i] = __builtin_convertvector(low, Pairs) | (__builtin_convertvector(high, Pairs) << 16);
      } else if (i < rows) {
        if constexpr (kKind == Kind::bf16_k_last) {
          load_some(static_cast<const std::uint16_t*>(from) + i * stride, length * 2, out[i]);
        } else {
          Codes codes;
          Halves values;
          load_some(static_cast<const std::uint8_t*>(from) + i * stride, length, codes);
          decode<kKind>(codes, values);
          if (scales) times_any(values, scales[i * scales_stride]);
          out[i] = reinterpret_cast<Pairs>(values);
        }
      }
    }
  }

  // One tile, from row `row` and element `k` of K on.
  template <Kind kKind, TileSide kSide>
  [[gnu::always_inline]] static void pack_tile(const TileOperand& x, std::int64_t rows, std::int64_t length, std::int64_t row,
                                               std::int64_t k, std::uint16_t* out) {
    constexpr bool kKFirst = kKind == Kind::bf16_k_first, kTransposes = (kSide == TileSide::a) == kKFirst;
    constexpr std::int64_t kElementBytes = kKind == Kind::e4m3 || kKind == Kind::e5m2 ? 1 : 2;
    const std::int64_t first = kKFirst ? k * x.stride + row : row * x.stride + k;
    const void* const from = static_cast<const std::uint8_t*>(x.data) + first * kElementBytes;
    const std::int64_t scales_stride = (length + kTileK - 1) / kTileK;
    const float* const scales = x.scales ? x.scales + row * scales_stride + k / kTileK : nullptr;
    bool plain = rows - row >= kTileRows && length - k >= kTileK;
    for (std::int64_t i = 0; scales && plain && i < kTileRows; ++i) plain = moves_exponent(scales[i * scales_stride]);
    Pairs tile[16];
    if (plain) {
      load_tile<kKind>(from, x.stride, scales, scales_stride, tile);
    } else {
      load_edge<kKind>(from, x.stride, scales, scales_stride, rows - row, length - k, tile);
    }
    if constexpr (kTransposes) transpose(tile);
    std::memcpy(out, tile, sizeof tile);
  }

  // Writes a row of tiles for each 16 rows; such rows of tiles begin `next` elements apart. The inner loop follows the lines of
  // memory, so that each is read once.
  template <Kind kKind, TileSide kSide>
  static void pack(const TileOperand& x, std::int64_t rows, std::int64_t length, std::uint16_t* out, std::int64_t next) {
    const auto pack_at = [&](std::int64_t row, std::int64_t k) {
      pack_tile<kKind, kSide>(x, rows, length, row, k, out + row / kTileRows * next + k / kTileK * kTileElements);
    };
    if constexpr (kKind == Kind::bf16_k_first) {
      for (std::int64_t k = 0; k < length; k += kTileK) {
        for (std::int64_t row = 0; row < rows; row += kTileRows) pack_at(row, k);
      }
    } else {
      for (std::int64_t row = 0; row < rows; row += kTileRows) {
        for (std::int64_t k = 0; k < length; k += kTileK) pack_at(row, k);
      }
    }
  }

  template <TileSide kSide>
  static void pack(const TileOperand& x, std::int64_t rows, std::int64_t length, std::uint16_t* out, std::int64_t next) {
    switch (x.kind) {
      case Kind::bf16_k_last:
        return pack<Kind::bf16_k_last, kSide>(x, rows, length, out, next);
      case Kind::bf16_k_first:
        return pack<Kind::bf16_k_first, kSide>(x, rows, length, out, next);
      case Kind::e4m3:
        return pack<Kind::e4m3, kSide>(x, rows, length, out, next);
      case Kind::e5m2:
        return pack<Kind::e5m2, kSide>(x, rows, length, out, next);
    }
  }

  static void pack(const TileOperand& x, TileSide side, std::int64_t rows, std::int64_t length, std::uint16_t* out,
                   std::int64_t next) {
    side == TileSide::a ? pack<TileSide::a>(x, rows, length, out, next) : pack<TileSide::b>(x, rows, length, out, next);
  }
};

}  // namespace octet::kernels::cpu
