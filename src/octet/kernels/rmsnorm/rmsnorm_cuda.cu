#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/copy_async_cuda.cuh"
#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"
#include "octet/kernels/rmsnorm/backward_slabs_cuda.cuh"
#include "octet/kernels/rmsnorm/rmsnorm_cuda.h"
#include "octet/kernels/rows_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

__device__ float normalise(float x, float rstd, float weight) { return x * rstd * weight; }

__device__ Bf16Vector normalise(const Bf16Vector& x, float rstd, const Bf16Vector& weight) {
  float values[kVector], factors[kVector];
  unpack(x, values);
  unpack(weight, factors);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = normalise(values[i], rstd, factors[i]);
  return pack(values);
}

// The sum over a row in the order of backward_row_cuda.cuh. Each thread contributes one of `sums` for each of its vectors, and
// every thread gets the result. Consecutive calls must alternate `turn`.
template <int kVectors>
__device__ float row_total(const float (&sums)[kVectors], int turn) {
  constexpr int kTiles = kVectors * most_threads(kVectors) / kTileVectors, kLeaves = kTiles <= 32 ? 1 : kTiles / 32;
  __shared__ float shares[2][kLeaves * 32];
  float* const tiles = shares[turn];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float of_tile = tree_sum<kTileVectors>(sums[i]);
    if (lane % kTileVectors == 0) tiles[(i * threads + thread) / kTileVectors] = of_tile;
  }
  __syncthreads();
  float leaves[kLeaves];
#pragma unroll
  for (int i = 0; i < kLeaves; ++i) {
    const int tile = lane * kLeaves + i;
    leaves[i] = tile < kVectors * threads / kTileVectors ? tiles[tile] : 0.0f;
  }
  return tree_sum<32>(tree_sum(leaves));
}

// One block per row; thread t has vectors t, t + blockDim.x, ... y is written if it is present.
template <int kVectors>
__global__ void __launch_bounds__(most_threads(kVectors))
    forward_kernel(const Rows x, const Rows weight, const Rows y, float epsilon, float* rstds) {
  // The last rows are processed last. A fused kernel then starts with them while they are in the cache.
  const int row = static_cast<int>(blockIdx.x);
  Bf16Vector vectors[kVectors];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    vectors[i] = x.load(row, (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * kVector);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector];
    unpack(vectors[i], values);
#pragma unroll
    for (int k = 0; k < kVector; ++k) squares = fmaf(values[k], values[k], squares);
  }
  const float rstd = 1.0f / sqrtf(block_total(squares) / static_cast<float>(x.cols) + epsilon);
  if (threadIdx.x == 0) rstds[row] = rstd;
  if (!y.at) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int col = (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * kVector;
    y.store(row, col, normalise(vectors[i], rstd, weight.load(0, col)));
  }
}

// One thread's part of the backward pass: its vectors of weight, and its partial sums of gweight over the block's rows.
template <int kVectors>
struct BackwardThread {
  Bf16Vector weights[kVectors];
  float shares[kVectors][kVector];

  static __device__ int col_of(int i) { return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * kVector; }

  __device__ explicit BackwardThread(const Rows& weight) : shares{} {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) weights[i] = weight.load(0, col_of(i));
  }
  // Replaces gxs by the new gx.
  __device__ void row(const Bf16Vector (&gys)[kVectors], const Bf16Vector (&xs)[kVectors], Bf16Vector (&gxs)[kVectors],
                      float rstd, int cols, int turn) {
    float dots[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) dots[i] = dot_of(gys[i], xs[i], weights[i], rstd);
    const float mean = row_total(dots, turn) / static_cast<float>(cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) add_gradient(gys[i], xs[i], weights[i], rstd, mean, gxs[i], shares[i]);
  }
  __device__ void store_shares(float* partial, int cols) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (col_of(i) + k < cols) partial[col_of(i) + k] = shares[i][k];
      }
    }
  }
};

// Each block processes `rows_per_block` rows. Its partial sum of gweight goes to row blockIdx.x of `partials`.
struct Backward {
  Rows gy, x, weight, gx;
  const float* rstds;
  int rows, rows_per_block;
  float* partials;
  __device__ float* partial() const { return partials + std::int64_t{blockIdx.x} * x.cols; }
};

// The backward pass without staging. It has the bits of staged_backward_kernel and serves the rows that the latter cannot:
// - rows that do not consist of whole, aligned vectors, because cp.async copies nothing else, and
// - rows of more than 4,096 elements. Three stages of them would leave room for one block on a multiprocessor, and above 12,900
//   elements for none. Such rows have enough loads in flight without staging.
template <int kVectors>
__global__ void __launch_bounds__(most_threads(kVectors), kVectors <= 2   ? 4
                                                          : kVectors == 4 ? 2
                                                                          : 1) backward_kernel(const Backward op) {
  const int begin = static_cast<int>(blockIdx.x) * op.rows_per_block, end = min(op.rows, begin + op.rows_per_block);
  BackwardThread<kVectors> thread(op.weight);
#pragma unroll 1
  for (int row = begin; row < end; ++row) {
    Bf16Vector gys[kVectors], xs[kVectors], gxs[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      gys[i] = op.gy.load(row, thread.col_of(i));
      xs[i] = op.x.load(row, thread.col_of(i));
      gxs[i] = op.gx.load(row, thread.col_of(i));
    }
    thread.row(gys, xs, gxs, op.rstds[row], op.x.cols, row % 2);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) op.gx.store(row, thread.col_of(i), gxs[i]);
  }
  thread.store_shares(op.partial(), op.x.cols);
}

// The same for rows of at most 4,096 elements that consist of whole, aligned vectors. Two rows are loaded to shared memory while
// one is processed. Without this, no loads would be in flight while all threads wait for the sum over the row.
constexpr int kStages = 3;

constexpr std::size_t staged_bytes(std::int64_t cols) { return static_cast<std::size_t>(kStages * 3 * cols * 2); }

template <int kVectors>
__global__ void __launch_bounds__(most_threads(kVectors), 3) staged_backward_kernel(const Backward op) {
  extern __shared__ Bf16Vector stages[];  // [kStages][gy, x, gx][vectors of a row]
  const int vectors = op.x.cols / kVector;
  const int begin = static_cast<int>(blockIdx.x) * op.rows_per_block, end = min(op.rows, begin + op.rows_per_block);
  BackwardThread<kVectors> thread(op.weight);
  const auto slot = [&](int row, int tensor) { return stages + ((row - begin) % kStages * 3 + tensor) * vectors; };
  // Each thread loads the data that it reads itself, so no barrier is needed.
  const auto fetch = [&](int row) {
    if (row < end) {
      const auto copy = [&](const Rows& from, int tensor) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int col = thread.col_of(i);
          if (col >= op.x.cols) continue;
          copy_async(slot(row, tensor) + col / kVector, from.at + row * from.stride + col);
        }
      };
      copy(op.gy, 0);
      copy(op.x, 1);
      copy(op.gx, 2);
    }
    end_copies();
  };
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) fetch(begin + i);
#pragma unroll 1
  for (int row = begin; row < end; ++row) {
    fetch(row + kStages - 1);
    const float rstd = op.rstds[row];
    wait_for_copies<kStages - 1>();
    Bf16Vector gys[kVectors] = {}, xs[kVectors] = {}, gxs[kVectors] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = thread.col_of(i) / kVector;
      if (at >= vectors) continue;
      gys[i] = slot(row, 0)[at];
      xs[i] = slot(row, 1)[at];
      gxs[i] = slot(row, 2)[at];
    }
    thread.row(gys, xs, gxs, rstd, op.x.cols, row % 2);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) op.gx.store(row, thread.col_of(i), gxs[i]);
  }
  thread.store_shares(op.partial(), op.x.cols);
}

// Computes y with the stored rstd.
struct RmsNormSource : Extent {
  static constexpr int kParts = 1, kAhead = 8, kBlocks = 3, kAcross = 1;
  using Column = Bf16Vector;  // weight
  struct Raw {
    Bf16Vector x;
    float rstd;
  };
  Bf16Source x, weight;
  const float* rstd;

  __device__ Column column(int col) const { return weight.fetch(0, col, {}); }
  __device__ Raw fetch(int row, int col, const Column&) const { return {x.fetch(row, col, {}), rstd[row]}; }
  __device__ void make(const Raw& raw, const Column& weights, Bf16Vector (&made)[1]) const {
    made[0] = normalise(raw.x, raw.rstd, weights);
  }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    made[0] = to_bf16(normalise(static_cast<float>(x.x[row * x.stride + col]), rstd[row], static_cast<float>(weight.x[col])));
  }
};

// Computes the new gx and the partial sums of gweight.
void launch_backward(Stream& stream, const RmsNormBackward& op, const Tensor& weight, const Extent& extent,
                     const Tensor& partials) {
  const Backward kernel{.gy = rows_of(op.gy, extent.wide),
                        .x = rows_of(op.x, extent.wide),
                        .weight = rows_of(weight, extent.wide),
                        .gx = rows_of(op.gx, extent.wide),
                        .rstds = op.rstd.as<float>(),
                        .rows = extent.rows,
                        .rows_per_block = static_cast<int>(rows_per_partial(extent.rows)),
                        .partials = partials.as<float>()};
  with_vectors("rmsnorm", extent.cols, [&]<int kVectors>(unsigned threads) {
    const auto blocks = static_cast<unsigned>(partials.rows());
    const cudaStream_t native = octet::cuda::native_stream(stream);
    if constexpr (kVectors <= 2) {  // at most 4,096 elements
      if (extent.wide) {
        const std::size_t bytes = staged_bytes(extent.cols);
        octet::cuda::check(cudaFuncSetAttribute(staged_backward_kernel<kVectors>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes)),
                           "cudaFuncSetAttribute");
        staged_backward_kernel<kVectors><<<blocks, threads, bytes, native>>>(kernel);
        return;
      }
    }
    backward_kernel<kVectors><<<blocks, threads, 0, native>>>(kernel);
  });
  octet::cuda::check_launch("rmsnorm_backward");
}

}  // namespace

void rmsnorm_forward(Stream& stream, const RmsNormForward& op, float* amaxes) {
  const Tensor y = op.codes ? Tensor{} : op.y, weight = as_row(op.weight);
  const Extent extent = extent_of("rmsnorm", op.x, weight, y);
  if (extent.rows == 0) return;
  with_vectors("rmsnorm", extent.cols, [&]<int kVectors>(unsigned threads) {
    forward_kernel<kVectors><<<static_cast<unsigned>(extent.rows), threads, 0, octet::cuda::native_stream(stream)>>>(
        rows_of(op.x, extent.wide), rows_of(weight, extent.wide), rows_of(y, extent.wide), static_cast<float>(op.epsilon),
        op.rstd.as<float>());
  });
  octet::cuda::check_launch("rmsnorm_forward");
  if (!op.codes) return;
  const RmsNormSource source{extent, Bf16Source(op.x), Bf16Source(weight), op.rstd.as<float>()};
  write_codes(stream, source, source, op.codes, amaxes);
}

void rmsnorm_backward(Stream& stream, const RmsNormBackward& op, const Tensor& partials, float* amaxes) {
  const Tensor weight = as_row(op.weight);
  const Extent extent = extent_of("rmsnorm", op.x, op.gy, op.gx, weight);
  if (extent.rows == 0) return;
  const Bf16Source gx(op.gx);
  const Slabs slabs(extent);
  const bool at_once = op.codes && slabs.fit() && has_memory_for(slabs);
  const int parts = at_once ? slabs.clusters : static_cast<int>(partials.rows());
  if (at_once) {
    const RmsNormBackwardSlabs source{slabs, op.gy, op.x, weight, op.gx, op.rstd.as<float>(), partials.as<float>()};
    write_codes(stream, source, gx, op.codes, amaxes);
  } else {
    launch_backward(stream, op, weight, extent, partials);
  }
  add_partials(stream, partials.slice_rows(0, parts), op.gweight);
  if (op.codes && !at_once) write_codes(stream, gx, gx, op.codes, amaxes);
}

}  // namespace octet::kernels::cuda
