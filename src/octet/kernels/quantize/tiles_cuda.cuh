// The common structure of all CUDA kernels that write FP8 codes: a prologue and an epilogue of a tile of 128 x 128, which a block
// of threads holds in registers. The prologue is a Source. It computes the tile, rounded to BF16. The Epilogue says what the
// kernel does with the tile:
//   values_epilogue_cuda.cuh    stores the values
//   amax_epilogue_cuda.cuh      records amaxes
//   quantize_epilogue_cuda.cuh  writes codes and scales, and may record an amax
// All variants of an op have the same source, and therefore the same bits. Kernels that compute tiles in another way use the same
// epilogues; overloads of launch_tiles start them.
//
//   struct Source : Extent {
//     static constexpr int kParts;   // results per element: in columns c, cols + c, ...
//     static constexpr int kBlocks;  // blocks of produce_tiles per multiprocessor; limits their registers
//     static constexpr int kAcross;  // tiles per block, side by side
//   };
// A source has its own overload of `gather`, or these members, which the `gather` below uses:
//     static constexpr int kAhead;   // number of rows whose loads are in flight at once
//     struct Column;                 // what vectors of the same columns share
//     struct Raw;                    // what is loaded for a vector; zeros must give zeros
//     Column column(int col) const;  // these three are used if `wide`
//     Raw fetch(int row, int col, const Column&) const;
//     void make(const Raw&, const Column&, Bf16Vector (&made)[kParts]) const;
//     void element(int row, int col, BFloat16 (&made)[kParts]) const;  // the same for one element at any place
#pragma once

#include <algorithm>
#include <cstdint>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_grid_cuda.cuh"
#include "octet/kernels/vector_cuda.cuh"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cuda {

constexpr int kTile = 128;
constexpr int kTileThreads = 256;
constexpr int kTileRows = kTile * kTile / kVector / kTileThreads;  // vectors per thread, below each other
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// The matrix that a source covers.
struct Extent {
  int rows = 0, cols = 0;
  bool wide = false;                     // all vectors are whole and aligned
  const std::int32_t* groups = nullptr;  // the group of each row of tiles, or -1 for none (tensor/row_groups.h); null: one tensor
};

// Rounds as the CPU does, including the payload of NaN, which amax makes visible. pack() gives every NaN the same payload.
__device__ inline unsigned round_like_cpu(float low, float high) {
  return BFloat16(low).bits | unsigned{BFloat16(high).bits} << 16;
}
__device__ inline Bf16Vector round_like_cpu(const Vector<float>& vector) {
  float values[kVector];
  unpack(vector, values);
  return {{{round_like_cpu(values[0], values[1]), round_like_cpu(values[2], values[3]), round_like_cpu(values[4], values[5]),
            round_like_cpu(values[6], values[7])}}};
}

// A thread's place in its tile. It has vector threadIdx.x % 16 of two groups of four rows, so half a warp covers a row and a warp
// 16 rows.
struct Tile {
  int row0, col0;  // of the tile in the result
  int rows, cols;  // size of the result
  int group = 0;   // of rows
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int vector() const { return static_cast<int>(threadIdx.x) % 16; }
  __device__ int row(int i) const { return row(i, lane() / 16); }
  __device__ int row(int i, int half) const { return row0 + warp() * 16 + i / 4 * 8 + half * 4 + i % 4; }
  __device__ int col() const { return col0 + vector() * kVector; }
  __device__ bool is_full() const { return row0 + kTile <= rows && col0 + kTile <= cols; }
};

// Computes a vector element by element.
template <class Source>
__device__ void element_vector(const Source& source, int row, int col, Bf16Vector (&made)[Source::kParts]) {
  for (int part = 0; part < Source::kParts; ++part) made[part] = {};
#pragma unroll 1
  for (int i = kVector - 1; i >= 0; --i) {
    BFloat16 elements[Source::kParts] = {};
    if (row < source.rows && col + i < source.cols) source.element(row, col + i, elements);
    for (int part = 0; part < Source::kParts; ++part) made[part] = push_front(made[part], elements[part].bits);
  }
}

// Computes the thread's vectors of the tile, with zeros outside the source.
template <class Source>
__device__ void gather_elements(const Source& source, const Tile& tile, Bf16Vector (&made)[Source::kParts][kTileRows]) {
#pragma unroll 1
  for (int row = 0; row < kTileRows; ++row) {
    Bf16Vector vector[Source::kParts];
    element_vector(source, tile.row(row), tile.col(), vector);
    // Shifts the rows up, so that all register indices are constants.
    for (int part = 0; part < Source::kParts; ++part) {
#pragma unroll
      for (int i = 0; i + 1 < kTileRows; ++i) made[part][i] = made[part][i + 1];
      made[part][kTileRows - 1] = vector[part];
    }
  }
}
template <class Source>
__device__ void gather(const Source& source, const Tile& tile, Bf16Vector (&made)[Source::kParts][kTileRows]) {
  if (!source.wide) return gather_elements(source, tile, made);
  const int col = tile.col();
  typename Source::Column column = {};
  if (col < source.cols) column = source.column(col);
#pragma unroll
  for (int first = 0; first < kTileRows; first += Source::kAhead) {
    typename Source::Raw raw[Source::kAhead] = {};
#pragma unroll
    for (int i = 0; i < Source::kAhead; ++i) {
      if (tile.row(first + i) < source.rows && col < source.cols) raw[i] = source.fetch(tile.row(first + i), col, column);
    }
#pragma unroll
    for (int i = 0; i < Source::kAhead; ++i) {
      Bf16Vector vector[Source::kParts];
      source.make(raw[i], column, vector);
      for (int part = 0; part < Source::kParts; ++part) made[part][first + i] = vector[part];
    }
  }
}

//   struct Epilogue {
//     struct Shared;                 // shared memory
//     struct State;                  // what a thread reads from global memory once, before the prologue
//     State begin(int group) const;
//     void finish(const Tile&, const Bf16Vector (&values)[kTileRows], const State&, Shared&) const;
//   };
// Produces kAcross tiles of row `down` of tiles, from column `first` of blocks of tiles on.
template <class Source, class Epilogue>
__device__ __forceinline__ void produce(const Source& source, const Epilogue& epilogue, int down, int first,
                                        typename Epilogue::Shared& shared) {
  const int group = source.groups ? source.groups[down] : 0;
  if (group < 0) return;
  const typename Epilogue::State state = epilogue.begin(group);
#pragma unroll 1
  for (int across = 0; across < Source::kAcross; ++across) {
    Tile tile{.row0 = down * kTile,
              .col0 = (first * Source::kAcross + across) * kTile,
              .rows = source.rows,
              .cols = source.cols,
              .group = group};
    if (across > 0 && tile.col0 >= tile.cols) break;
    if (across > 0) __syncthreads();
    Bf16Vector made[Source::kParts][kTileRows] = {};
    gather(source, tile, made);
#pragma unroll 1
    for (int part = 0;;) {
      epilogue.finish(tile, made[0], state, shared);
      if (++part == Source::kParts) break;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) made[0][i] = made[Source::kParts - 1][i];
      tile.col0 += source.cols;
      tile.cols += source.cols;
    }
  }
}

template <class Source, class Epilogue>
__global__ void __launch_bounds__(kTileThreads, Source::kBlocks)
    produce_tiles(const Source source, const Epilogue epilogue, const BlockGrid grid) {
  __shared__ typename Epilogue::Shared shared;
  produce(source, epilogue, grid.row_from_end(), grid.col(), shared);
}

template <class Source, class Epilogue>
void launch_tiles(Stream& stream, const Source& source, const Epilogue& epilogue) {
  const BlockGrid grid(source.rows, kTile, source.cols, kTile * Source::kAcross);
  produce_tiles<<<grid.blocks(), kTileThreads, 0, octet::cuda::native_stream(stream)>>>(source, epilogue, grid);
  octet::cuda::check_launch("produce_tiles");
}

inline const std::int32_t* groups_of(const RowGroups& groups) { return groups ? groups.tiles.as<std::int32_t>() : nullptr; }

// Reads a BF16 tensor.
struct Bf16Source : Extent {
  static constexpr int kParts = 1, kAhead = 8, kBlocks = 4, kAcross = 1;
  struct Column {};
  using Raw = Bf16Vector;
  const BFloat16* x;
  std::int64_t stride;

  explicit Bf16Source(const Tensor& tensor, const RowGroups& groups = {})
      : Extent{.rows = static_cast<int>(tensor.rows()),
               .cols = static_cast<int>(tensor.shape[1]),
               .wide = rows_are_aligned(tensor) && tensor.shape[1] % kVector == 0,
               .groups = groups_of(groups)},
        x(tensor.as<BFloat16>()),
        stride(tensor.row_stride) {}

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const { return load_vector(x + row * stride + col); }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const { made[0] = raw; }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const { made[0] = x[row * stride + col]; }
};

}  // namespace octet::kernels::cuda
