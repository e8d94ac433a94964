// The product of packed tiles, for any set of instructions `Tiles`:
//   Tiles tiles;                     eight tiles of this thread, which is in a TileSession
//   tiles.zero<T>()                  tile T = 0, of 16x16 FP32
//   tiles.load<T>(from, bytes)       16 vectors of 64 bytes, `bytes` apart
//   tiles.load_once<T>(from, bytes)  the same, from memory that is not read again soon
//   tiles.store<T>(to, bytes)        the same, to memory
//   tiles.multiply<D, A, B>()        D[i, j] += sum over 32 k of A[i, k] B[j, k], in the order of tile_kernel.h
// Everything is a template for the reason that pack_tiles.h gives.
#pragma once

#include <cstdint>

#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

template <class Tiles>
class TileMultiplier {
 public:
  static void multiply(const TileProduct& p) {
    TileMultiplier multiplier(p);
    // Two rows of tiles of A stay in the first-level cache while all of B passes.
    for (std::int64_t i = 0; i < p.m; i += 2 * kTileRows) {
      const bool tall = p.m - i > kTileRows;
      for (std::int64_t j = 0; j < p.n; j += 2 * kTileRows) {
        const bool wide = p.n - j > kTileRows;
        const TilePanel a = p.a.from(i, 0), b = p.b.from(j, 0);
        float* const sums = p.sums + i * p.sums_stride + j;
        if (tall && wide) {
          multiplier.template multiply_block<2, 2>(a, b, sums);
        } else if (tall) {
          multiplier.template multiply_block<2, 1>(a, b, sums);
        } else if (wide) {
          multiplier.template multiply_block<1, 2>(a, b, sums);
        } else {
          multiplier.template multiply_block<1, 1>(a, b, sums);
        }
      }
    }
    multiplier.template store<0>();
    multiplier.template store<1>();
    multiplier.template store<2>();
    multiplier.template store<3>();
  }

 private:
  explicit TileMultiplier(const TileProduct& p)
      : p_(p), sums_bytes_(p.sums_stride * static_cast<std::int64_t>(sizeof(float))), a_bytes_(2 * p.a.row) {}

  // Sums of kRows x kColumns tiles, each at most 2. The sums stay in their tiles until the next block needs these; their stores
  // then lie between that block's first products. Stored together, they would fill the store buffer, and the products would wait.
  template <int kRows, int kColumns>
  void multiply_block(TilePanel a, TilePanel b, float* sums) {
    multiply_step<kRows, kColumns, true>(a, b, sums);
    for (std::int64_t k = kTileK; k < p_.k; k += kTileK) {
      a.data += a.step;
      b.data += b.step;
      multiply_step<kRows, kColumns, false>(a, b, sums);
    }
  }

  // The products of one tile of K. Only A is read again soon.
  template <int kRows, int kColumns, bool kFirst>
  [[gnu::always_inline]] void multiply_step(const TilePanel& a, const TilePanel& b, float* sums) {
    constexpr std::int64_t kBytes = 64;
    tiles_.template load_once<6>(b.data, kBytes);
    tiles_.template load<4>(a.data, a_bytes_);
    if constexpr (kFirst) begin<0>(sums);
    tiles_.template multiply<0, 4, 6>();
    if constexpr (kColumns > 1) {
      tiles_.template load_once<7>(b.data + b.next, kBytes);
      if constexpr (kFirst) begin<1>(sums + kTileRows);
      tiles_.template multiply<1, 4, 7>();
    }
    if constexpr (kRows > 1) {
      float* const below = sums + kTileRows * p_.sums_stride;
      tiles_.template load<5>(a.data + a.next, a_bytes_);
      if constexpr (kFirst) begin<2>(below);
      tiles_.template multiply<2, 5, 6>();
      if constexpr (kColumns > 1) {
        if constexpr (kFirst) begin<3>(below + kTileRows);
        tiles_.template multiply<3, 5, 7>();
      }
    }
  }

  // Makes a tile hold the sums that belong to `sums`, and stores what it held before.
  template <int kTile>
  [[gnu::always_inline]] void begin(float* sums) {
    store<kTile>();
    held_[kTile] = sums;
    if (p_.accumulate) {
      tiles_.template load_once<kTile>(sums, sums_bytes_);
    } else {
      tiles_.template zero<kTile>();
    }
  }
  template <int kTile>
  [[gnu::always_inline]] void store() {
    if (held_[kTile]) tiles_.template store<kTile>(held_[kTile], sums_bytes_);
  }

  Tiles tiles_;
  const TileProduct& p_;
  const std::int64_t sums_bytes_, a_bytes_;
  float* held_[4] = {};  // where the sums in tiles 0 to 3 are to be stored; nullptr: the tile holds none
};

}  // namespace octet::kernels::cpu
