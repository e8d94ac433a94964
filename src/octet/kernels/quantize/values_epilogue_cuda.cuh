// The epilogue of an op that is not followed by quantisation.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

// Writes the values. Part p of the source goes to columns [p cols, (p + 1) cols).
struct ValuesEpilogue {
  struct Shared {};
  struct State {};
  BFloat16* out;
  std::int64_t stride;
  bool wide;

  ValuesEpilogue(const Tensor& to, int part_cols)
      : out(to.as<BFloat16>()), stride(to.row_stride), wide(rows_are_aligned(to) && part_cols % kVector == 0) {}

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], State, Shared&) const { store(tile, values); }
  __device__ void store(const Tile& tile, const Bf16Vector (&values)[kTileRows]) const {
    const int col = tile.col();
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      if (tile.row(i) >= tile.rows || col >= tile.cols) continue;
      BFloat16* const at = out + tile.row(i) * stride + col;
      if (wide) {
        store_vector(at, values[i]);
        continue;
      }
      Bf16Vector left = values[i];
#pragma unroll 1
      for (int k = 0; k < min(kVector, tile.cols - col); ++k) {
        at[k] = front(left);
        left = pop_front(left);
      }
    }
  }
};

}  // namespace octet::kernels::cuda
