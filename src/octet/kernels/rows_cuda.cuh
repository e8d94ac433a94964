// Shared by the norms' kernels: rows of a BF16 matrix, one block per row.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

// One block processes a row. It has up to 256 threads with 1, 2, 4 or 8 chunks each; for the longest rows, up to 512 threads.
constexpr int kMostChunks = 8;
constexpr int most_threads(int chunks) { return chunks == kMostChunks ? 512 : 256; }

// The sum of `value` over the block in a fixed order, for every thread. There must be a barrier between two calls.
__device__ inline float block_total(float value) {
  __shared__ float warps[most_threads(kMostChunks) / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  float total = lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : 0.0f;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(kAllLanes, total, distance);
  return total;
}

// Rows of a BF16 matrix, read and written in chunks, or by element if 16-byte accesses are not possible.
struct Rows {
  std::uint16_t* at;
  std::int64_t stride;
  int cols;
  bool wide;

  __device__ Chunk load(int row, int col) const {
    const std::uint16_t* const from = at + row * stride + col;
    if (wide) return col < cols ? load_chunk(from) : Chunk{};
    Chunk chunk = {};
#pragma unroll 1
    for (int i = kChunk - 1; i >= 0; --i) chunk = push_front(chunk, col + i < cols ? from[i] : std::uint16_t{0});
    return chunk;
  }
  __device__ void store(int row, int col, Chunk chunk) const {
    std::uint16_t* const to = at + row * stride + col;
    if (wide) {
      if (col < cols) *reinterpret_cast<Chunk*>(to) = chunk;
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kChunk && col + i < cols; ++i) {
      to[i] = static_cast<std::uint16_t>(chunk.x);
      chunk = pop_front(chunk);
    }
  }
};

// The extent that several tensors share.
template <class... Tensors>
Extent extent_of(const char* op, const Tensor& x, const Tensors&... others) {
  require(x.dtype == DType::bf16, op, ": activations on CUDA are BF16, got ", name_of(x.dtype));
  return {.rows = static_cast<int>(x.rows()),
          .cols = static_cast<int>(x.cols()),
          .wide = is_wide(x) && (is_wide(others) && ...) && x.cols() % kChunk == 0};
}

inline Tensor as_row(const Tensor& weight) { return weight.reshape({1, weight.shape[0]}); }

inline Rows rows_of(const Tensor& x, bool wide) {
  if (!x) return {};
  return {
      .at = const_cast<std::uint16_t*>(bf16_bits(x)), .stride = x.row_stride, .cols = static_cast<int>(x.shape[1]), .wide = wide};
}

// Calls launch<kChunks>(threads) with the numbers for rows of `cols` elements.
template <class Launch>
void with_chunks(const char* op, int cols, Launch launch) {
  const int chunks = std::max(1, (cols + kChunk - 1) / kChunk);
  require(chunks <= kMostChunks * most_threads(kMostChunks), op, ": rows of ", cols,
          " elements are too long for the CUDA kernel");
  const auto threads = [&](int each) { return static_cast<unsigned>(((chunks + each - 1) / each + 31) / 32 * 32); };
  if (threads(1) <= 256) return launch.template operator()<1>(threads(1));
  if (threads(2) <= 256) return launch.template operator()<2>(threads(2));
  if (threads(4) <= 256) return launch.template operator()<4>(threads(4));
  launch.template operator()<kMostChunks>(threads(kMostChunks));
}

}  // namespace octet::kernels::cuda
