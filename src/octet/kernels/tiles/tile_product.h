// The product of packed tiles, for any set of instructions `Tiles`:
//   Tiles tiles;                  eight tiles of this thread, which is in a TileSession
//   tiles.zero<T>()               tile T = 0, of 16x16 FP32
//   tiles.load<T>(from, bytes)    16 vectors of 64 bytes, `bytes` apart
//   tiles.store<T>(to, bytes)     the same
//   tiles.multiply<D, A, B>()     D[i, j] += sum over 32 k of A[i, k] B[j, k], in the order of tile_kernel.h
// Everything is a template for the reason that pack_tiles.h gives.
#pragma once

#include <cstdint>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

template <class Tiles>
struct TileMultiplier {
  // Sums of kRows x kColumns tiles, each at most 2.
  template <int kRows, int kColumns>
  static void multiply_block(Tiles& tiles, const TileProduct& p, TilePanel a, TilePanel b, float* sums) {
    const std::int64_t bytes = p.sums_stride * static_cast<std::int64_t>(sizeof(float)), a_bytes = 2 * a.row, b_bytes = 64;
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
    for (std::int64_t k = 0; k < p.k; k += kTileK, a.data += a.step, b.data += b.step) {
      tiles.template load<6>(b.data, b_bytes);
      tiles.template load<4>(a.data, a_bytes);
      tiles.template multiply<0, 4, 6>();
      if constexpr (kColumns > 1) {
        tiles.template load<7>(b.data + b.next, b_bytes);
        tiles.template multiply<1, 4, 7>();
      }
      if constexpr (kRows > 1) {
        tiles.template load<5>(a.data + a.next, a_bytes);
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
    Tiles tiles;
    // Two rows of tiles of A stay in the first-level cache while all of B passes.
    for (std::int64_t i = 0; i < p.m; i += 2 * kTileRows) {
      const bool tall = p.m - i > kTileRows;
      for (std::int64_t j = 0; j < p.n; j += 2 * kTileRows) {
        const bool wide = p.n - j > kTileRows;
        const TilePanel a = p.a.from(i, 0), b = p.b.from(j, 0);
        float* const sums = p.sums + i * p.sums_stride + j;
        if (tall && wide) {
          multiply_block<2, 2>(tiles, p, a, b, sums);
        } else if (tall) {
          multiply_block<2, 1>(tiles, p, a, b, sums);
        } else if (wide) {
          multiply_block<1, 2>(tiles, p, a, b, sums);
        } else {
          multiply_block<1, 1>(tiles, p, a, b, sums);
        }
      }
    }
  }
};

}  // namespace octet::kernels::cpu
