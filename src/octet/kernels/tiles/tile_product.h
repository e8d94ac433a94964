// The product of packed tiles, for any set of instructions `Tiles`:
//   Tiles tiles;                  makes eight tiles usable by this thread; its destructor gives them back
//   tiles.zero<T>()               tile T = 0, of 16x16 FP32
//   tiles.load<T>(from, bytes)    16 vectors of 64 bytes, `bytes` apart
//   tiles.store<T>(to, bytes)     the same
//   tiles.multiply<D, A, B>()     D[i, j] += sum over 32 k of A[i, k] B[j, k], in the order of tile_kernel.h
//   Tiles::widen(codes, out)      32 bytes as 32 uint16
//   Tiles::look_up(table, i, out) table[i % 32] for each of 32 uint16
// All is a template for the reason that pack_tiles.h gives.
#pragma once

#include <cstdint>

#include "octet/kernels/tiles/pack_tiles.h"

namespace octet::kernels::cpu {

template <class Tiles>
struct TileMultiplier {
  using Packer = TilePacker<Tiles>;
  static constexpr std::int64_t kTileElements = Packer::kTileElements, kVectorBytes = 64;

  // Sums of kRows x kColumns tiles, each at most 2. `a` and `b` are the first tile of each row of tiles, `steps` long.
  template <int kRows, int kColumns>
  static void multiply_block(Tiles& tiles, const TileProduct& p, const std::uint16_t* a, const std::uint16_t* b,
                             std::int64_t steps, float* sums) {
    const std::int64_t bytes = p.sums_stride * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t next = steps * kTileElements;  // from a row of tiles to the next one
    float* const below = sums + kTileRows * p.sums_stride;
    if (p.accumulate) {
      tiles.template load<0>(sums, bytes);
      if constexpr (kColumns > 1) tiles.template load<1>(sums + kTileRows, bytes);
      if constexpr (kRows > 1) tiles.template load<2>(below, bytes);
      if constexpr (kRows > 1 && kColumns > 1) tiles.template load<3>(below + kTileRows, bytes);
    } else {
      tiles.template zero<0>();
      if constexpr (kColumns > 1) tiles.template zero<1>();
      if constexpr (kRows > 1) tiles.template zero<2>();
      if constexpr (kRows > 1 && kColumns > 1) tiles.template zero<3>();
    }
    for (std::int64_t step = 0; step < steps; ++step, a += kTileElements, b += kTileElements) {
      tiles.template load<6>(b, kVectorBytes);
      tiles.template load<4>(a, kVectorBytes);
      tiles.template multiply<0, 4, 6>();
      if constexpr (kColumns > 1) {
        tiles.template load<7>(b + next, kVectorBytes);
        tiles.template multiply<1, 4, 7>();
      }
      if constexpr (kRows > 1) {
        tiles.template load<5>(a + next, kVectorBytes);
        tiles.template multiply<2, 5, 6>();
      }
      if constexpr (kRows > 1 && kColumns > 1) tiles.template multiply<3, 5, 7>();
    }
    tiles.template store<0>(sums, bytes);
    if constexpr (kColumns > 1) tiles.template store<1>(sums + kTileRows, bytes);
    if constexpr (kRows > 1) tiles.template store<2>(below, bytes);
    if constexpr (kRows > 1 && kColumns > 1) tiles.template store<3>(below + kTileRows, bytes);
  }

  static void multiply(const TileProduct& p) {
    const std::int64_t steps = (p.k + kTileK - 1) / kTileK;
    auto* const a = static_cast<std::uint16_t*>(p.memory);
    std::uint16_t* const b = a + (p.m + kTileRows - 1) / kTileRows * steps * kTileElements;
    Packer::template pack<Packer::Side::a>(p.a, p.m, p.k, a);
    Packer::template pack<Packer::Side::b>(p.b, p.n, p.k, b);

    Tiles tiles;
    // Two rows of tiles of B stay in the first-level cache while all of A passes.
    for (std::int64_t j = 0; j < p.n; j += 2 * kTileRows) {
      const bool wide = p.n - j > kTileRows;
      const std::uint16_t* const b_tiles = b + j * steps * kTileK;
      for (std::int64_t i = 0; i < p.m; i += 2 * kTileRows) {
        const bool tall = p.m - i > kTileRows;
        const std::uint16_t* const a_tiles = a + i * steps * kTileK;
        float* const sums = p.sums + i * p.sums_stride + j;
        if (tall && wide) {
          multiply_block<2, 2>(tiles, p, a_tiles, b_tiles, steps, sums);
        } else if (tall) {
          multiply_block<2, 1>(tiles, p, a_tiles, b_tiles, steps, sums);
        } else if (wide) {
          multiply_block<1, 2>(tiles, p, a_tiles, b_tiles, steps, sums);
        } else {
          multiply_block<1, 1>(tiles, p, a_tiles, b_tiles, steps, sums);
        }
      }
    }
  }
};

}  // namespace octet::kernels::cpu
