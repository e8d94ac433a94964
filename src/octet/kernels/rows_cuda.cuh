// Shared by the norms' kernels: rows of a BF16 matrix, one block per row.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

// One block processes a row. It has up to 256 threads with 1, 2, 4 or 8 vectors each; for the longest rows, up to 512 threads.
constexpr int kMostVectors = 8;
constexpr int most_threads(int vectors) { return vectors == kMostVectors ? 512 : 256; }

// The sum of `value` over the block in a fixed order, for every thread. There must be a barrier between two calls.
__device__ inline float block_total(float value) {
  __shared__ float warps[most_threads(kMostVectors) / 32];
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

// Rows of a BF16 matrix, read and written in vectors, or by element if 16-byte accesses are not possible.
struct Rows {
  BFloat16* at;
  std::int64_t stride;
  int cols;
  bool wide;

  __device__ Bf16Vector load(int row, int col) const {
    const BFloat16* const from = at + row * stride + col;
    if (wide) return col < cols ? piece_at<kVector>(from) : Bf16Vector{};
    Bf16Vector vector = {};
#pragma unroll 1
    for (int i = kVector - 1; i >= 0; --i) vector = push_front(vector, col + i < cols ? from[i].bits : std::uint16_t{0});
    return vector;
  }
  __device__ void store(int row, int col, Bf16Vector vector) const {
    BFloat16* const to = at + row * stride + col;
    if (wide) {
      if (col < cols) store_vector(to, vector);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kVector && col + i < cols; ++i) {
      to[i] = front(vector);
      vector = pop_front(vector);
    }
  }
};

// The extent that several tensors share.
template <class... Tensors>
Extent extent_of(const char* op, const Tensor& x, const Tensors&... others) {
  require(x.dtype == DType::bf16, op, ": activations on CUDA are BF16, got ", name_of(x.dtype));
  return {.rows = static_cast<int>(x.rows()),
          .cols = static_cast<int>(x.cols()),
          .wide = rows_are_aligned(x) && (rows_are_aligned(others) && ...) && x.cols() % kVector == 0};
}

inline Tensor as_row(const Tensor& weight) { return weight.reshape({1, weight.shape[0]}); }

inline Rows rows_of(const Tensor& x, bool wide) {
  if (!x) return {};
  return {.at = x.as<BFloat16>(), .stride = x.row_stride, .cols = static_cast<int>(x.shape[1]), .wide = wide};
}

// Calls launch<kVectors>(threads) with the numbers for rows of `cols` elements.
template <class Launch>
void with_vectors(const char* op, int cols, Launch launch) {
  const int vectors = std::max(1, (cols + kVector - 1) / kVector);
  require(vectors <= kMostVectors * most_threads(kMostVectors), op, ": rows of ", cols,
          " elements are too long for the CUDA kernel");
  const auto threads = [&](int each) { return static_cast<unsigned>(((vectors + each - 1) / each + 31) / 32 * 32); };
  if (threads(1) <= 256) return launch.template operator()<1>(threads(1));
  if (threads(2) <= 256) return launch.template operator()<2>(threads(2));
  if (threads(4) <= 256) return launch.template operator()<4>(threads(4));
  launch.template operator()<kMostVectors>(threads(kMostVectors));
}

}  // namespace octet::kernels::cuda
