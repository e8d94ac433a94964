// The epilogue of a pass that only records amaxes. A recipe whose scales need them runs it before the pass that writes the codes.
#pragma once

#include "octet/kernels/quantize/magnitudes_cuda.cuh"

namespace octet::kernels::cuda {

// Computes the largest magnitudes of the tensor, its rows and its columns. Each may be absent. The caller zeroes them first. With
// groups of rows, each group has its own.
struct AmaxEpilogue {
  using Shared = ColumnMagnitudes;
  using State = unsigned;  // the tensor's amax so far; avoids atomic operations by warps that cannot raise it
  float* whole = nullptr;
  float* rows = nullptr;
  float* columns = nullptr;
  std::int64_t group_columns = 0;  // from a group's columns to those of the next

  __device__ State begin(int group) const { return whole ? __float_as_uint(whole[group]) : 0u; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], State so_far, Shared& shared) const {
    if (whole) {
      const unsigned largest = warp_magnitude(values) << 16;
      if (tile.lane() == 0 && largest > so_far) raise(whole + tile.group, __uint_as_float(largest));
    }
    if (rows) {
      unsigned pairs[kTileRows / 2];
      row_magnitudes<16>(values, pairs);
      const int mine = tile.lane() % kTileRows, row = tile.row(mine);
      if (tile.vector() == mine && row < tile.rows) raise(rows + row, magnitude_value(row_of_pairs(pairs, mine)));
    }
    if (columns) {
      shared.put(tile, values);
      __syncthreads();
      const int column = static_cast<int>(threadIdx.x), col = tile.col0 + column;
      if (column < kTile && col < tile.cols) {
        raise(columns + tile.group * group_columns + col, magnitude_value(shared.get<kTileThreads / 32>(column)));
      }
    }
  }
};

inline void zero(Stream& stream, float* at, std::int64_t count) {
  octet::cuda::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(count) * sizeof(float), octet::cuda::native_stream(stream)),
                     "cudaMemsetAsync");
}

}  // namespace octet::kernels::cuda
