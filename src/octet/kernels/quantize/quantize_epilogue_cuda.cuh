// The epilogues that write FP8 codes, one for each granularity of scales, and the passes that an op with a QuantizeEpilogue
// launches.
#pragma once

#include <algorithm>

#include "octet/kernels/quantize/amax_epilogue_cuda.cuh"
#include "octet/kernels/quantize/codes_cuda.cuh"
#include "octet/kernels/quantize/magnitudes_cuda.cuh"
#include "octet/kernels/quantize/quantize.h"

namespace octet::kernels::cuda {

// Writes codes with one scale for the whole tensor, or for each group of rows: `scale`, or the scale of `current_amax`.
template <Fp8Format kFormat>
struct TensorEpilogue {
  using Shared = TransposedTile;
  struct State {
    float scale_or_amax;
    unsigned amax;  // the recorded amax so far; avoids atomic operations by warps that cannot raise it
  };
  Codes codes;
  QuantSpec spec;
  const float* scale;
  const float* current_amax;
  float* amax;
  float* rowwise_scale_inv;
  float* columnwise_scale_inv;
  const std::int32_t* first;               // the first row of each group, or null
  std::int64_t scale_stride, amax_stride;  // from a group to the next

  __device__ State begin(int group) const {
    return {.scale_or_amax = scale ? scale[group * scale_stride] : current_amax[group],
            .amax = amax ? __float_as_uint(amax[group * amax_stride]) : 0u};
  }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], const State& state, Shared& shared) const {
    const float factor = scale ? state.scale_or_amax : device_scale(state.scale_or_amax, spec);
    if (threadIdx.x == 0 && tile.col0 == 0 && tile.row0 == (first ? first[tile.group] : 0)) {
      if (rowwise_scale_inv) rowwise_scale_inv[tile.group] = 1.0f / factor;
      if (columnwise_scale_inv) columnwise_scale_inv[tile.group] = 1.0f / factor;
    }
    if (amax) {
      const unsigned largest = warp_magnitude(values) << 16;
      if (tile.lane() == 0 && largest > state.amax) raise(amax + tile.group * amax_stride, __uint_as_float(largest));
    }
    write_codes<kFormat>(tile, values, factor, codes, shared);
  }
};

// Writes codes with one scale per 128 x 128 tile.
template <Fp8Format kFormat>
struct BlockEpilogue {
  struct Shared {
    TransposedTile transposed;
    unsigned warps[kTileThreads / 32];
  };
  struct State {};
  Codes codes;
  QuantSpec spec;
  float* rowwise_scale_inv;
  std::int64_t rowwise_scale_stride;
  float* columnwise_scale_inv;
  std::int64_t columnwise_scale_stride;

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], const State&, Shared& shared) const {
    const unsigned of_warp = warp_magnitude(values);
    if (tile.lane() == 0) shared.warps[tile.warp()] = of_warp;
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kTileThreads / 32; ++i) largest = max(largest, shared.warps[i]);
    const float scale = device_scale(magnitude_value(largest), spec);
    if (threadIdx.x == 0) {
      const int down = tile.row0 / kTile, across = tile.col0 / kTile;
      if (codes.rowwise) rowwise_scale_inv[down * rowwise_scale_stride + across] = 1.0f / scale;
      if (codes.columnwise) columnwise_scale_inv[across * columnwise_scale_stride + down] = 1.0f / scale;
    }
    write_codes<kFormat>(tile, values, scale, codes, shared.transposed);
  }
};

// Writes rowwise codes with one scale per row of the tile, and columnwise codes with one scale per column of the tile. The scales
// are those of 1x128 blocks or, if the amaxes of whole rows and columns are given, those of rows and columns.
template <Fp8Format kFormat>
struct LineEpilogue {
  struct Shared {
    TransposedTile transposed;
    ColumnMagnitudes magnitudes;
    alignas(16) float scales[kTile];
  };
  struct State {};
  Codes codes;
  QuantSpec spec;
  const float* row_amax;
  const float* column_amax;
  float* rowwise_scale_inv;
  std::int64_t rowwise_scale_stride;  // from the scales of a column of tiles to those of the next; 0 if a row has one scale
  float* columnwise_scale_inv;
  std::int64_t columnwise_scale_stride;
  std::int64_t group_columns;  // from a group's columns to those of the next, in column_amax and the scales of whole columns

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], const State&, Shared& shared) const {
    if (codes.columnwise) column_scales(tile, values, shared);
    if (codes.rowwise) write_rowwise(tile, values);  // meanwhile, half of the warps compute the columns' scales
    if (!codes.columnwise) return;
    __syncthreads();
    write_columnwise_codes<kFormat>(tile, values, shared.scales, codes, shared.transposed);
  }

 private:
  // Each lane computes the scale of one row and gets the other scales by shuffles.
  __device__ void write_rowwise(const Tile& tile, const Bf16Vector (&values)[kTileRows]) const {
    const int mine = tile.lane() % kTileRows, row = tile.row(mine);
    float amax = 0.0f;
    if (row_amax) {
      if (row < tile.rows) amax = row_amax[row];
    } else {
      unsigned pairs[kTileRows / 2];
      row_magnitudes<16>(values, pairs);
      amax = magnitude_value(row_of_pairs(pairs, mine));
    }
    const float scale = device_scale(amax, spec);
    if (tile.vector() == mine && row < tile.rows)
      rowwise_scale_inv[tile.col0 / kTile * rowwise_scale_stride + row] = 1.0f / scale;
#pragma unroll
    for (int step = 0; step < kTileRows / 4; ++step) {
      uint2 of_rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float of_row = __shfl_sync(kAllLanes, scale, (tile.lane() & 16) | (4 * step + i));
        of_rows[i] = encode<kFormat>(values[4 * step + i], of_row);
      }
      codes.store_rowwise(tile, step, of_rows);
    }
  }
  // A barrier is needed before the scales are read.
  __device__ void column_scales(const Tile& tile, const Bf16Vector (&values)[kTileRows], Shared& shared) const {
    if (!column_amax) {
      shared.magnitudes.put(tile, values);
      __syncthreads();
    }
    const int column = static_cast<int>(threadIdx.x), col = tile.col0 + column;
    if (column < kTile) {
      float amax = 0.0f;
      if (!column_amax) {
        amax = magnitude_value(shared.magnitudes.template get<kTileThreads / 32>(column));
      } else if (col < tile.cols) {
        amax = column_amax[tile.group * group_columns + col];
      }
      const float scale = device_scale(amax, spec);
      shared.scales[column] = scale;
      if (col < tile.cols) {
        columnwise_scale_inv[tile.row0 / kTile * columnwise_scale_stride + tile.group * group_columns + col] = 1.0f / scale;
      }
    }
  }
};

// These make the epilogues of a source of `cols` columns.
template <Fp8Format kFormat>
TensorEpilogue<kFormat> tensor_epilogue(const QuantizeEpilogue& to, int cols, const float* current_amax) {
  return {.codes = {to.out, cols},
          .spec = to.spec,
          .scale = to.scale,
          .current_amax = current_amax,
          .amax = to.amax,
          .rowwise_scale_inv = scales_of(to.out.rowwise_scale_inv),
          .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv),
          .first = to.groups ? to.groups.first.as<std::int32_t>() : nullptr,
          .scale_stride = to.scale_stride,
          .amax_stride = to.amax_stride};
}
template <Fp8Format kFormat>
LineEpilogue<kFormat> line_epilogue(const QuantizeEpilogue& to, int cols, const float* row_amax, const float* column_amax) {
  const bool blocks = to.spec.tile == ScaleTile::block_1x128;
  return {.codes = {to.out, cols},
          .spec = to.spec,
          .row_amax = row_amax,
          .column_amax = column_amax,
          .rowwise_scale_inv = scales_of(to.out.rowwise_scale_inv),
          .rowwise_scale_stride = blocks ? to.out.rowwise_scale_inv.row_stride : 0,
          .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv),
          .columnwise_scale_stride = blocks ? to.out.columnwise_scale_inv.row_stride : 0,
          .group_columns = blocks ? 0 : to.out.columnwise_scale_inv.cols()};
}
template <Fp8Format kFormat>
BlockEpilogue<kFormat> block_epilogue(const QuantizeEpilogue& to, int cols) {
  return {.codes = {to.out, cols},
          .spec = to.spec,
          .rowwise_scale_inv = scales_of(to.out.rowwise_scale_inv),
          .rowwise_scale_stride = to.out.rowwise_scale_inv.row_stride,
          .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv),
          .columnwise_scale_stride = to.out.columnwise_scale_inv.row_stride};
}

// Uses to.scale, or the scale of `current_amax` if to.scale is null.
template <class Source>
void write_tensor_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to, const float* current_amax) {
  visit_format(to.spec.format, [&]<Fp8Format kFormat>() {
    launch_tiles(stream, source, tensor_epilogue<kFormat>(to, source.cols, current_amax));
  });
}

// Uses scales of 1x128 blocks, or scales of rows and columns if their amaxes are given.
template <class Source>
void write_line_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to, const float* row_amax,
                      const float* column_amax) {
  const bool blocks = to.spec.tile == ScaleTile::block_1x128;
  if (blocks && (source.rows == 0 || source.cols == 0)) return;
  visit_format(to.spec.format, [&]<Fp8Format kFormat>() {
    launch_tiles(stream, source, line_epilogue<kFormat>(to, source.cols, row_amax, column_amax));
  });
}

template <class Source>
void write_block_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to) {
  if (source.rows == 0 || source.cols == 0) return;
  visit_format(to.spec.format,
               [&]<Fp8Format kFormat>() { launch_tiles(stream, source, block_epilogue<kFormat>(to, source.cols)); });
}

// Writes the codes of a source. If amaxes are needed first, `first` computes them and `second`, which gives the same values, the
// codes. Computing the values twice moves no more bytes than storing and loading them.
template <class First, class Second>
void write_codes(Stream& stream, const First& first, const Second& second, const QuantizeEpilogue& to, float* amaxes) {
  switch (to.spec.tile) {
    case ScaleTile::tensor:
      if (to.scale) return write_tensor_codes(stream, first, to, nullptr);
      zero(stream, amaxes, std::max<std::int64_t>(1, to.groups.size()));
      launch_tiles(stream, first, AmaxEpilogue{.whole = amaxes});
      return write_tensor_codes(stream, second, to, amaxes);
    case ScaleTile::row: {
      float* const columns = amaxes + first.rows;
      const std::int64_t cols = std::int64_t{first.cols} * First::kParts;
      zero(stream, amaxes, first.rows + std::max<std::int64_t>(1, to.groups.size()) * cols);
      launch_tiles(stream, first,
                   AmaxEpilogue{.rows = to.out.rowwise ? amaxes : nullptr,
                                .columns = to.out.columnwise ? columns : nullptr,
                                .group_columns = cols});
      return write_line_codes(stream, second, to, amaxes, columns);
    }
    case ScaleTile::block_1x128:
      return write_line_codes(stream, first, to, nullptr, nullptr);
    case ScaleTile::block_128x128:
      return write_block_codes(stream, first, to);
    case ScaleTile::mx_1x32:
      fail(ExitCode::internal, "no producer writes MX codes");
  }
}

}  // namespace octet::kernels::cuda
