// The common structure of all CUDA kernels that write FP8 codes. A block of threads processes tiles of 128 x 128. A Source
// computes a tile in registers, rounded to BF16. A Tail is the epilogue: it writes codes, scales and amax, or the values
// (tails_cuda.cuh). All variants of an op have the same source, and therefore the same bits. Kernels that compute tiles in
// another way use the same tails; overloads of launch_tiles start them.
//
//   struct Source : Extent {
//     static constexpr int kParts;   // results per element: in columns c, cols + c, ...
//     static constexpr int kBlocks;  // blocks of produce_tiles per multiprocessor; limits their registers
//     static constexpr int kAcross;  // tiles per block, side by side
//   };
// A source has its own overload of `gather`, or these members, which the `gather` below uses:
//     static constexpr int kAhead;   // number of rows whose loads are in flight at once
//     struct Column;                 // what chunks of the same columns share
//     struct Raw;                   // what is loaded for a chunk; zeros must give zeros
//     Column column(int col) const;  // these three are used if `wide`
//     Raw fetch(int row, int col, const Column&) const;
//     void make(const Raw&, const Column&, Chunk (&made)[kParts]) const;
//     void element(int row, int col, std::uint16_t (&made)[kParts]) const;  // the same for one element at any place
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cuda {

constexpr int kTile = 128;
constexpr int kTileThreads = 256;
constexpr int kChunk = 8;
constexpr int kTileRows = kTile * kTile / kChunk / kTileThreads;  // chunks per thread, below each other
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Eight adjacent BF16 columns of a row.
using Chunk = uint4;

// The matrix that a source covers.
struct Extent {
  int rows = 0, cols = 0;
  bool wide = false;  // all chunks are whole and aligned to their size
};

inline bool on_multiple(const void* address, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; }

// Whether rows of `tensor` can be read and written in vectors of 16 bytes. True for an absent tensor.
inline bool is_wide(const Tensor& tensor) {
  return !tensor ||
         (on_multiple(tensor.data, 16) && tensor.row_stride * static_cast<std::int64_t>(size_of(tensor.dtype)) % 16 == 0);
}

__device__ inline float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ inline float value_of(std::uint16_t bits) { return __uint_as_float(unsigned{bits} << 16); }

__device__ inline std::uint16_t to_bf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
__device__ inline unsigned to_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ inline Chunk load_chunk(const std::uint16_t* at) { return *reinterpret_cast<const Chunk*>(at); }

__device__ inline void unpack(const Chunk& chunk, float (&values)[kChunk]) {
  const unsigned words[] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = low_of(words[i]);
    values[2 * i + 1] = high_of(words[i]);
  }
}
__device__ inline Chunk pack(const float (&values)[kChunk]) {
  return {to_bf16(values[0], values[1]), to_bf16(values[2], values[3]), to_bf16(values[4], values[5]),
          to_bf16(values[6], values[7])};
}

// Rounds as the CPU does, including the payload of NaN, which amax makes visible.
__device__ inline unsigned round_like_cpu(float low, float high) {
  return BFloat16(low).bits | unsigned{BFloat16(high).bits} << 16;
}
__device__ inline Chunk round_like_cpu(const float4& low, const float4& high) {
  return {round_like_cpu(low.x, low.y), round_like_cpu(low.z, low.w), round_like_cpu(high.x, high.y),
          round_like_cpu(high.z, high.w)};
}

// Inserts an element at column 0 and drops the last one.
__device__ inline Chunk push_front(const Chunk& chunk, std::uint16_t bits) {
  return {chunk.x << 16 | bits, __funnelshift_l(chunk.x, chunk.y, 16), __funnelshift_l(chunk.y, chunk.z, 16),
          __funnelshift_l(chunk.z, chunk.w, 16)};
}
// Removes column 0.
__device__ inline Chunk pop_front(const Chunk& chunk) {
  return {__funnelshift_r(chunk.x, chunk.y, 16), __funnelshift_r(chunk.y, chunk.z, 16), __funnelshift_r(chunk.z, chunk.w, 16),
          chunk.w >> 16};
}

// A thread's place in its tile. It has chunk threadIdx.x % 16 of two groups of four rows, so half a warp covers a row and a warp
// 16 rows.
struct Tile {
  int row0, col0;  // of the tile in the result
  int rows, cols;  // size of the result
  __device__ int warp() const { return static_cast<int>(threadIdx.x) / 32; }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int chunk() const { return static_cast<int>(threadIdx.x) % 16; }
  __device__ int row(int i) const { return row(i, lane() / 16); }
  __device__ int row(int i, int half) const { return row0 + warp() * 16 + i / 4 * 8 + half * 4 + i % 4; }
  __device__ int col() const { return col0 + chunk() * kChunk; }
  __device__ bool is_full() const { return row0 + kTile <= rows && col0 + kTile <= cols; }
};

// Computes a chunk element by element.
template <class Source>
__device__ void element_chunk(const Source& source, int row, int col, Chunk (&made)[Source::kParts]) {
  for (int part = 0; part < Source::kParts; ++part) made[part] = {};
#pragma unroll 1
  for (int i = kChunk - 1; i >= 0; --i) {
    std::uint16_t bits[Source::kParts] = {};
    if (row < source.rows && col + i < source.cols) source.element(row, col + i, bits);
    for (int part = 0; part < Source::kParts; ++part) made[part] = push_front(made[part], bits[part]);
  }
}

// Computes the thread's chunks of the tile, with zeros outside the source.
template <class Source>
__device__ void gather_elements(const Source& source, const Tile& tile, Chunk (&made)[Source::kParts][kTileRows]) {
#pragma unroll 1
  for (int row = 0; row < kTileRows; ++row) {
    Chunk chunk[Source::kParts];
    element_chunk(source, tile.row(row), tile.col(), chunk);
    // Shifts the rows up, so that all register indices are constants.
    for (int part = 0; part < Source::kParts; ++part) {
#pragma unroll
      for (int i = 0; i + 1 < kTileRows; ++i) made[part][i] = made[part][i + 1];
      made[part][kTileRows - 1] = chunk[part];
    }
  }
}
template <class Source>
__device__ void gather(const Source& source, const Tile& tile, Chunk (&made)[Source::kParts][kTileRows]) {
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
      Chunk chunk[Source::kParts];
      source.make(raw[i], column, chunk);
      for (int part = 0; part < Source::kParts; ++part) made[part][first + i] = chunk[part];
    }
  }
}

template <class Source, class Tail>
__global__ void __launch_bounds__(kTileThreads, Source::kBlocks) produce_tiles(const Source source, const Tail tail) {
  __shared__ typename Tail::Shared shared;
  const typename Tail::State state = tail.begin();
#pragma unroll 1
  for (int across = 0; across < Source::kAcross; ++across) {
    // Starts with the last rows, which the previous kernel left in the cache.
    Tile tile{.row0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile,
              .col0 = (static_cast<int>(blockIdx.x) * Source::kAcross + across) * kTile,
              .rows = source.rows,
              .cols = source.cols};
    if (across > 0 && tile.col0 >= tile.cols) break;
    if (across > 0) __syncthreads();
    Chunk made[Source::kParts][kTileRows] = {};
    gather(source, tile, made);
#pragma unroll 1
    for (int part = 0;;) {
      tail.finish(tile, made[0], state, shared);
      if (++part == Source::kParts) break;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) made[0][i] = made[Source::kParts - 1][i];
      tile.col0 += source.cols;
      tile.cols += source.cols;
    }
  }
}

template <class Source, class Tail>
void launch_tiles(Stream& stream, const Source& source, const Tail& tail) {
  const dim3 grid(static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(source.cols, kTile * Source::kAcross))),
                  static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(source.rows, kTile))));
  produce_tiles<<<grid, kTileThreads, 0, octet::cuda::native_stream(stream)>>>(source, tail);
  octet::cuda::check_launch("produce_tiles");
}

inline const std::uint16_t* bf16_bits(const Tensor& tensor) {
  return reinterpret_cast<const std::uint16_t*>(tensor.as<BFloat16>());
}

// Reads a BF16 tensor.
struct Bf16Source : Extent {
  static constexpr int kParts = 1, kAhead = 8, kBlocks = 4, kAcross = 1;
  struct Column {};
  using Raw = Chunk;
  const std::uint16_t* x;
  std::int64_t stride;

  explicit Bf16Source(const Tensor& tensor)
      : Extent{.rows = static_cast<int>(tensor.rows()),
               .cols = static_cast<int>(tensor.shape[1]),
               .wide = is_wide(tensor) && tensor.shape[1] % kChunk == 0},
        x(bf16_bits(tensor)),
        stride(tensor.row_stride) {}

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const { return load_chunk(x + row * stride + col); }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[1]) const { made[0] = raw; }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const { made[0] = x[row * stride + col]; }
};

}  // namespace octet::kernels::cuda
