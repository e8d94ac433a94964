// Packs operands into tiles of BF16. A tile is 16 vectors of 16 pairs of neighbouring k. In tiles of A a vector is a row; in
// tiles of B it is a pair of k, and so holds one pair of each of 16 rows.
//
// `Tiles` has the instruction that g++'s vectors lack:
//   Tiles::look_up(table, i, out)  out[j] = table[j / 16 * 16 + i[j] % 16] for each of 64 bytes; i[j] < 128
// Everything here is a template over this set of instructions, so that each file that includes this header has its own functions
// for its own processor, and the linker never takes those of a newer processor for the whole program.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

template <class Tiles>
struct TilePacker {
  using Kind = TileOperand::Kind;
  typedef std::uint8_t Bytes __attribute__((vector_size(64)));
  typedef std::uint8_t Line __attribute__((vector_size(32)));  // 32 codes
  typedef std::uint64_t LineWords __attribute__((vector_size(32)));
  typedef std::uint64_t Words __attribute__((vector_size(64)));
  typedef std::uint16_t Halves __attribute__((vector_size(64)));  // 32 BF16
  typedef std::uint32_t Pairs __attribute__((vector_size(64)));   // 16 pairs of BF16, the lower k in the lower half

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

  // The numbers from 0 on, for shuffles.
  template <int... i>
  using Lanes = std::integer_sequence<int, i...>;
  template <int n>
  static constexpr auto kLanes = std::make_integer_sequence<int, n>();

  template <Kind kKind>
  using Element = std::conditional_t<is_bf16(kKind), std::uint16_t, std::uint8_t>;

  // The BF16 of the magnitudes 0 to 15, repeated for each 16 bytes. All subnormal codes are among them.
  struct SmallMagnitudes {
    std::uint8_t low[64] = {}, high[64] = {};
  };
  template <bool kE4m3>
  static constexpr SmallMagnitudes small_magnitudes() {
    constexpr int kBias = kE4m3 ? 7 : 15, kMantissaBits = kE4m3 ? 3 : 2;
    SmallMagnitudes result;
    for (int i = 0; i < 64; ++i) {
      const int magnitude = i % 16;
      if (magnitude == 0) continue;
      int mantissa = magnitude & ((1 << kMantissaBits) - 1), exponent = magnitude >> kMantissaBits;
      if (exponent > 0) {
        mantissa |= 1 << kMantissaBits;
      } else {
        exponent = 1;
      }
      for (; mantissa < 1 << kMantissaBits; --exponent) mantissa *= 2;
      mantissa &= (1 << kMantissaBits) - 1;
      const int bits = (exponent - kBias + 127) << 7 | mantissa << (7 - kMantissaBits);
      result.low[i] = static_cast<std::uint8_t>(bits);
      result.high[i] = static_cast<std::uint8_t>(bits >> 8);
    }
    return result;
  }

  // The BF16 of 64 codes, exactly. The first 8 codes of each 16 go to `first` and the others to `second`, in their order. The
  // bytes of a BF16 are computed apart, because a vector holds twice as many bytes as halves.
  template <Kind kKind>
  [[gnu::always_inline]] static void decode(const Bytes& codes, Pairs& first, Pairs& second) {
    constexpr bool kE4m3 = is_e4m3(kKind);
    constexpr int kShift = kE4m3 ? 4 : 5;  // from the code's mantissa to that of the BF16
    constexpr std::uint8_t kRebias = (127 - (kE4m3 ? 7 : 15)) >> 1, kLargest = kE4m3 ? 0x7E : 0x7B;
    static constexpr auto kSmall = small_magnitudes<kE4m3>();
    Bytes low_table, high_table, small_low{}, small_high{};
    const Bytes magnitude = codes & 0x7F;
    load(kSmall.low, low_table);
    load(kSmall.high, high_table);
    Tiles::look_up(low_table, magnitude, small_low);
    Tiles::look_up(high_table, magnitude, small_high);
    const auto is_small = magnitude < std::uint8_t{16};
    // Infinity has no mantissa. NaN keeps the mantissa of its code, which is not 0.
    const Bytes special = reinterpret_cast<Bytes>(magnitude > kLargest);
    const Bytes low = (is_small ? small_low : codes << kShift) | (special & 0x80);
    const Bytes high = (is_small ? small_high : (magnitude >> (8 - kShift)) + kRebias) | (special & 0x7F) | (codes & 0x80);
    interleave<0>(low, high, first);
    interleave<1>(low, high, second);
  }

  // Each element of `a` followed by that of `b`: of every 16 bytes the first 8 (kHalf = 0) or the last 8 (kHalf = 1). This is one
  // instruction.
  template <int kHalf, class Vector, class Out>
  [[gnu::always_inline]] static void interleave(const Vector& a, const Vector& b, Out& out) {
    constexpr int kElements = sizeof a / sizeof a[0], kRun = 8 / sizeof a[0];
    const auto shuffle = [&]<int... i>(Lanes<i...>) {
      out = reinterpret_cast<Out>(
          __builtin_shufflevector(a, b, (i / (2 * kRun) * 2 * kRun + kHalf * kRun + i % (2 * kRun) / 2 + i % 2 * kElements)...));
    };
    shuffle(kLanes<kElements>);
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
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & kStep) continue;
      const Pairs low = rows[i], high = rows[i + kStep];
      constexpr auto from = [](int lane, bool upper) { return ((lane & kStep) != 0) == upper ? lane : lane ^ kStep; };
      // Lanes 16 to 31 are those of the second vector.
      const auto pick = [&]<int... kLane>(Lanes<kLane...>) {
        rows[i] = __builtin_shufflevector(low, high, (kLane & kStep ? 16 + from(kLane, false) : kLane)...);
        rows[i + kStep] = __builtin_shufflevector(low, high, (kLane & kStep ? 16 + kLane : from(kLane, true))...);
      };
      pick(kLanes<16>);
    }
  }
  // Writes the transpose of the 16x16 pairs of a tile.
  [[gnu::always_inline]] static void transpose(const Pairs* tile, std::uint16_t* out) {
    Pairs rows[16];  // registers
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = tile[i];
    exchange<1>(rows);
    exchange<2>(rows);
    exchange<4>(rows);
    exchange<8>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) std::memcpy(out + i * kTileK, &rows[i], sizeof rows[i]);
  }

  // Tiles that are loaded at once. Of an operand with K first these are two, because a line of memory has a vector of BF16 in
  // each.
  template <Kind kKind>
  static constexpr int kTilesAtOnce = k_first(kKind) ? 2 : 1;

  // Calls put(tile, i, vector) for each vector of tiles that lie within the operand. A vector is a row or, if K is first, a pair
  // of k. `from` is the first element.
  template <Kind kKind, class Put>
  [[gnu::always_inline]] static void load_tiles(const Element<kKind>* from, std::int64_t stride, const Put& put) {
    Pairs first, second;
    if constexpr (kKind == Kind::bf16_k_last) {
      for (int i = 0; i < 16; ++i) {
        load(from + i * stride, first);
        put(0, i, first);
      }
    } else if constexpr (!k_first(kKind)) {
      for (int i = 0; i < 16; i += 2) {
        LineWords a, b;
        load(from + i * stride, a);
        load(from + (i + 1) * stride, b);
        decode<kKind>(reinterpret_cast<Bytes>(__builtin_shufflevector(a, b, 0, 4, 1, 5, 2, 6, 3, 7)), first, second);
        put(0, i, first);
        put(0, i + 1, second);
      }
    } else {
      for (int i = 0; i < 16; ++i) {
        load_pairs<kKind>(from + 2 * i * stride, from + (2 * i + 1) * stride, first, second);
        put(0, i, first);
        put(1, i, second);
      }
    }
  }

  // The pairs of two lines of an operand with K first: those of 16 rows go to `first`, and those of the next 16 to `second`.
  template <Kind kKind>
  [[gnu::always_inline]] static void load_pairs(const Element<kKind>* a, const Element<kKind>* b, Pairs& first, Pairs& second) {
    if constexpr (is_bf16(kKind)) {
      Halves x, y;
      load(a, x);
      load(b, y);
      Words low, high;
      interleave<0>(x, y, low);
      interleave<1>(x, y, high);
      first = reinterpret_cast<Pairs>(__builtin_shufflevector(low, high, 0, 1, 8, 9, 2, 3, 10, 11));
      second = reinterpret_cast<Pairs>(__builtin_shufflevector(low, high, 4, 5, 12, 13, 6, 7, 14, 15));
    } else {
      Line x, y;
      load(a, x);
      load(b, y);
      LineWords low, high;
      interleave<0>(x, y, low);
      interleave<1>(x, y, high);
      decode<kKind>(reinterpret_cast<Bytes>(__builtin_shufflevector(low, high, 0, 2, 1, 3, 4, 6, 5, 7)), first, second);
    }
  }

  // The same for tiles that reach beyond the operand. Elements beyond it are 0.
  template <Kind kKind, class Put>
  [[gnu::noinline]] static void load_edge(const Element<kKind>* from, std::int64_t stride, std::int64_t rows, std::int64_t length,
                                          const Put& put) {
    constexpr std::int64_t kRows = kTileRows * kTilesAtOnce<kKind>;
    constexpr std::int64_t kLines = k_first(kKind) ? kTileK : kRows, kWidth = k_first(kKind) ? kRows : kTileK;
    const std::int64_t lines = k_first(kKind) ? length : rows, width = k_first(kKind) ? rows : length;
    Element<kKind> whole[kLines * kWidth] = {};
    const auto bytes = static_cast<std::size_t>(width < kWidth ? width : kWidth) * sizeof *from;
    for (std::int64_t line = 0; line < lines && line < kLines; ++line)
      std::memcpy(whole + line * kWidth, from + line * stride, bytes);
    load_tiles<kKind>(whole, kWidth, put);
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

  // The tiles that are loaded at once, from row `row` and element `k` of K on.
  template <Kind kKind, TileSide kSide>
  [[gnu::always_inline]] static void pack_tiles(const TileOperand& x, std::int64_t rows, std::int64_t length, std::int64_t row,
                                                std::int64_t k, std::uint16_t* out, std::int64_t next) {
    constexpr bool kKFirst = k_first(kKind), kTransposes = (kSide == TileSide::a) == kKFirst;
    constexpr int kTiles = kTilesAtOnce<kKind>;
    const auto* const from = static_cast<const Element<kKind>*>(x.data) + (kKFirst ? k * x.stride + row : row * x.stride + k);
    const bool within = rows - row >= kTiles * kTileRows && length - k >= kTileK;
    const auto load_with = [&](const auto& put) {
      within ? load_tiles<kKind>(from, x.stride, put) : load_edge<kKind>(from, x.stride, rows - row, length - k, put);
    };
    const std::int64_t tiles = rows - row > kTileRows ? kTiles : 1;  // that have rows
    if (!kTransposes && !x.scales) {
      load_with([&](int tile, int i, const Pairs& vector) {
        if (tile < tiles) std::memcpy(out + tile * next + i * kTileK, &vector, sizeof vector);
      });
      return;
    }
    Pairs loaded[kTiles][16];
    load_with([&](int tile, int i, const Pairs& vector) { loaded[tile][i] = vector; });
    if (x.scales) {
      const std::int64_t steps = (length + kTileK - 1) / kTileK;
      apply_scales(x.scales + row * steps + k / kTileK, steps, rows - row, loaded[0]);
    }
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      if constexpr (kTransposes) {
        transpose(loaded[tile], out + tile * next);
      } else {
        std::memcpy(out + tile * next, loaded[tile], sizeof loaded[tile]);
      }
    }
  }

  // Writes one row of tiles for each 16 rows; rows of tiles begin `next` elements apart. The inner loop follows the lines of
  // memory, so that each is read once.
  template <Kind kKind, TileSide kSide>
  static void pack(const TileOperand& x, std::int64_t rows, std::int64_t length, std::uint16_t* out, std::int64_t next) {
    const auto pack_at = [&](std::int64_t row, std::int64_t k) {
      pack_tiles<kKind, kSide>(x, rows, length, row, k, out + row / kTileRows * next + k / kTileK * kTileElements, next);
    };
    if constexpr (k_first(kKind)) {
      for (std::int64_t k = 0; k < length; k += kTileK) {
        for (std::int64_t row = 0; row < rows; row += 2 * kTileRows) pack_at(row, k);
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
