// Packs operands into tiles of BF16. A tile is 16 vectors of 16 pairs of neighbouring k. In tiles of A a vector is a row; in
// tiles of B it is a pair of k, and so holds one pair of each of 16 rows.
//
// `Tiles` has the instructions that g++'s vectors lack:
//   Tiles::interleave(a, b, out)  a[0], b[0], a[1], b[1], ... of 16 bytes each
//   Tiles::widen(codes, out)      32 bytes as 32 uint16
//   Tiles::look_up(table, i, out) table[i % 32] for each of 32 uint16
// Everything here is a template over this set of instructions, so that each file that includes this header has its own functions
// for its own processor, and the linker never takes those of a newer processor for the whole program.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

template <class Tiles>
struct TilePacker {
  using Kind = TileOperand::Kind;
  typedef std::uint8_t Codes __attribute__((vector_size(32)));
  typedef std::uint16_t Halves __attribute__((vector_size(64)));  // 32 BF16
  typedef std::uint16_t HalfLine __attribute__((vector_size(32)));
  typedef std::uint32_t Pairs __attribute__((vector_size(64)));  // 16 pairs of BF16, the lower k in the lower half

  static constexpr std::int64_t kTileElements = kTileRows * kTileK;

  // Vectors are passed by reference, because g++ warns about functions that return vectors which the processor lacks.
  template <class Vector>
  [[gnu::always_inline]] static void load(const void* from, Vector& out) {
    std::memcpy(&out, from, sizeof out);
  }

  static constexpr bool k_first(Kind kind) {
    return kind == Kind::bf16_k_first || kind == Kind::e4m3_k_first || kind == Kind::e5m2_k_first;
  }
  static constexpr bool is_bf16(Kind kind) { return kind == Kind::bf16_k_last || kind == Kind::bf16_k_first; }
  static constexpr bool is_e4m3(Kind kind) { return kind == Kind::e4m3 || kind == Kind::e4m3_k_first; }
  template <Kind kKind>
  using Element = std::conditional_t<is_bf16(kKind), std::uint16_t, std::uint8_t>;

  // Magnitudes up to 31, among them all subnormals, as bits of BF16. Larger magnitudes are normal numbers.
  template <bool kE4m3>
  static constexpr auto small_magnitudes() {
    constexpr int kBias = kE4m3 ? 7 : 15, kMantissaBits = kE4m3 ? 3 : 2;
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
  }

  // Replaces each code, one in each half, by the bits of a BF16, exactly.
  template <Kind kKind>
  [[gnu::always_inline]] static void decode(Pairs& x) {
    constexpr bool kE4m3 = is_e4m3(kKind);
    constexpr std::uint16_t kShift = kE4m3 ? 4 : 5, kRebias = (127 - (kE4m3 ? 7 : 15)) << 7, kLargest = kE4m3 ? 0x7E : 0x7B;
    static constexpr auto kSmall = small_magnitudes<kE4m3>();
    const Halves all = reinterpret_cast<Halves>(x);
    Halves table, small{};
    const Halves magnitude = all & 0x7F;
    load(&kSmall, table);
    Tiles::look_up(table, magnitude, small);
    const Halves large = (magnitude << kShift) + kRebias;
    const Halves is_large = reinterpret_cast<Halves>(magnitude > std::uint16_t{31});
    const Halves bits = (large & is_large) | (small & ~is_large);
    // Infinity has no mantissa. NaN keeps the mantissa of its code, which is not 0.
    const Halves special = reinterpret_cast<Halves>(magnitude > kLargest) & std::uint16_t{0x7F80};
    x = reinterpret_cast<Pairs>(bits | special | ((all & 0x80) << 8));
  }

  // Finite codes lie between 2^-16 and 2^16, so multiplying them by these factors gives normal numbers.
  [[gnu::always_inline]] static bool moves_exponent(float scale) { return scale >= 0x1p-110f && scale <= 0x1p110f; }

  // Multiplies BF16 by a power of two for which moves_exponent holds. 0, infinity and NaN stay.
  [[gnu::always_inline]] static void times(Halves& x, float scale) {
    std::uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    const auto step = static_cast<std::uint16_t>(((bits >> 23) - 127) << 7);
    const Halves magnitude = x & 0x7FFF;
    const Halves moved = reinterpret_cast<Halves>(magnitude - 1 < std::uint16_t{0x7F80 - 1});
    x += moved & step;
  }

  // The same for every power of two and NaN. Results below 2^-126 are truncated, not rounded; the tiles read them as 0.
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

  // Transposes 16x16 pairs: in each step, vectors `kStep` apart exchange the elements that are on the wrong side.
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

  // The 16 vectors of a tile that lies within the operand: rows, or pairs of k if K is first. `from` is the tile's first
  // element.
  template <Kind kKind>
  [[gnu::always_inline]] static void load_tile(const Element<kKind>* from, std::int64_t stride, Pairs* out) {
    for (std::int64_t i = 0; i < 16; ++i) {
      const Element<kKind>* const line = from + (k_first(kKind) ? 2 * i : i) * stride;
      if constexpr (kKind == Kind::bf16_k_last) {
        load(line, out[i]);
      } else if constexpr (kKind == Kind::bf16_k_first) {
        HalfLine low, high;
        load(line, low);
        load(line + stride, high);
        out[i] = __builtin_convertvector(low, Pairs) | (__builtin_convertvector(high, Pairs) << 16);
      } else {
        Codes codes{};
        if constexpr (k_first(kKind)) {
          Tiles::interleave(line, line + stride, codes);
        } else {
          load(line, codes);
        }
        Halves all{};
        Tiles::widen(codes, all);
        out[i] = reinterpret_cast<Pairs>(all);
        decode<kKind>(out[i]);
      }
    }
  }

  // The same for a tile that reaches beyond the operand. Elements beyond it are 0.
  template <Kind kKind>
  [[gnu::noinline]] static void load_edge(const Element<kKind>* from, std::int64_t stride, std::int64_t rows, std::int64_t length,
                                          Pairs* out) {
    constexpr std::int64_t kLines = k_first(kKind) ? kTileK : kTileRows, kWidth = k_first(kKind) ? kTileRows : kTileK;
    const std::int64_t lines = k_first(kKind) ? length : rows, width = k_first(kKind) ? rows : length;
    Element<kKind> whole[kLines * kWidth] = {};
    const auto bytes = static_cast<std::size_t>(width < kWidth ? width : kWidth) * sizeof *from;
    for (std::int64_t line = 0; line < lines && line < kLines; ++line)
      std::memcpy(whole + line * kWidth, from + line * stride, bytes);
    load_tile<kKind>(whole, kWidth, out);
  }

  // Multiplies each of the first rows of a tile by its scale.
  static void apply_scales(const float* scales, std::int64_t stride, std::int64_t rows, Pairs* tile) {
    for (std::int64_t i = 0; i < kTileRows && i < rows; ++i) {
      const float scale = scales[i * stride];
      Halves values = reinterpret_cast<Halves>(tile[i]);
      if (moves_exponent(scale)) {
        times(values, scale);
      } else {
        times_any(values, scale);
      }
      tile[i] = reinterpret_cast<Pairs>(values);
    }
  }

  // One tile, from row `row` and element `k` of K on.
  template <Kind kKind, TileSide kSide>
  [[gnu::always_inline]] static void pack_tile(const TileOperand& x, std::int64_t rows, std::int64_t length, std::int64_t row,
                                               std::int64_t k, std::uint16_t* out) {
    constexpr bool kKFirst = k_first(kKind), kTransposes = (kSide == TileSide::a) == kKFirst;
    const auto* const from = static_cast<const Element<kKind>*>(x.data) + (kKFirst ? k * x.stride + row : row * x.stride + k);
    Pairs tile[16];
    if (rows - row >= kTileRows && length - k >= kTileK) {
      load_tile<kKind>(from, x.stride, tile);
    } else {
      load_edge<kKind>(from, x.stride, rows - row, length - k, tile);
    }
    if (x.scales) {
      const std::int64_t steps = (length + kTileK - 1) / kTileK;
      apply_scales(x.scales + row * steps + k / kTileK, steps, rows - row, tile);
    }
    if constexpr (kTransposes) transpose(tile);
    std::memcpy(out, tile, sizeof tile);
  }

  // Writes one row of tiles for each 16 rows; rows of tiles begin `next` elements apart. The inner loop follows the lines of
  // memory, so that each is read once.
  template <Kind kKind, TileSide kSide>
  static void pack(const TileOperand& x, std::int64_t rows, std::int64_t length, std::uint16_t* out, std::int64_t next) {
    const auto pack_at = [&](std::int64_t row, std::int64_t k) {
      pack_tile<kKind, kSide>(x, rows, length, row, k, out + row / kTileRows * next + k / kTileK * kTileElements);
    };
    if constexpr (k_first(kKind)) {
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
      case Kind::e4m3_k_first:
        return pack<Kind::e4m3_k_first, kSide>(x, rows, length, out, next);
      case Kind::e5m2:
        return pack<Kind::e5m2, kSide>(x, rows, length, out, next);
      case Kind::e5m2_k_first:
        return pack<Kind::e5m2_k_first, kSide>(x, rows, length, out, next);
    }
  }

  static void pack(const TileOperand& x, TileSide side, std::int64_t rows, std::int64_t length, std::uint16_t* out,
                   std::int64_t next) {
    side == TileSide::a ? pack<TileSide::a>(x, rows, length, out, next) : pack<TileSide::b>(x, rows, length, out, next);
  }
};

}  // namespace octet::kernels::cpu
