#include "octet/device/cuda/cuda.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kSumColumns = 32, kSumRuns = 16;

__device__ void store(float* at, float value) { *at = value; }
__device__ void store(BFloat16* at, float value) { *at = to_bf16(value); }

template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumRuns) add_partials_kernel(const float* partials, int parts, int cols, T* y) {
  __shared__ float runs[kSumRuns][kSumColumns];
  const int col = static_cast<int>(blockIdx.x) * kSumColumns + static_cast<int>(threadIdx.x), run = static_cast<int>(threadIdx.y);
  float sum = 0.0f;
  if (col < cols) {
#pragma unroll 8
    for (int part = run * parts / kSumRuns; part < (run + 1) * parts / kSumRuns; ++part) {
      sum += partials[std::int64_t{part} * cols + col];
    }
  }
  runs[run][threadIdx.x] = sum;
  __syncthreads();
  if (run > 0 || col >= cols) return;
  for (int other = 1; other < kSumRuns; ++other) sum += runs[other][threadIdx.x];
  store(y + col, static_cast<float>(y[col]) + sum);
}

// Each thread sums a vector of columns over `rows_per_block` rows.
// blockIdx.y selects these rows and the row of `partials` for the sum.
constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) column_sums_kernel(const BFloat16* x, std::int64_t stride, bool wide, int rows,
                                                               int cols, int rows_per_block, float* partials) {
  const int col = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kVector;
  if (col >= cols) return;
  const int begin = static_cast<int>(blockIdx.y) * rows_per_block, end = min(rows, begin + rows_per_block);
  const int count = min(kVector, cols - col);
  float sums[kVector] = {};
  if (wide && count == kVector) {
#pragma unroll 4
    for (int row = begin; row < end; ++row) {
      float values[kVector];
      unpack(load_vector(x + row * stride + col), values);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sums[k] += values[k];
    }
  } else {
#pragma unroll 1
    for (int row = begin; row < end; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (k < count) sums[k] += static_cast<float>(x[row * stride + col + k]);
      }
    }
  }
  float* const to = partials + std::int64_t{blockIdx.y} * cols + col;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    if (k < count) to[k] = sums[k];
  }
}

}  // namespace

void add_partials(Stream& stream, const Tensor& partials, const Tensor& y) {
  if (!y) return;
  const int cols = static_cast<int>(y.elements()), parts = static_cast<int>(partials.rows());
  if (cols == 0) return;
  const auto add = [&](auto* to) {
    add_partials_kernel<<<static_cast<unsigned>(ceil_div(cols, kSumColumns)), dim3(kSumColumns, kSumRuns), 0,
                          octet::cuda::native_stream(stream)>>>(partials.as<float>(), parts, cols, to);
    octet::cuda::check_launch("add_partials");
  };
  if (y.dtype == DType::bf16) {
    add(y.as<BFloat16>());
  } else {
    add(y.as<float>());
  }
}

void column_sums(Stream& stream, const ColumnSums& op, const Tensor& partials) {
  require(op.x.dtype == DType::bf16, "column_sums: activations on CUDA are BF16, got ", name_of(op.x.dtype));
  const int rows = static_cast<int>(op.x.rows()), cols = static_cast<int>(op.x.cols());
  if (rows == 0 || cols == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(cols, kThreads * kVector)), static_cast<unsigned>(partials.rows()));
  column_sums_kernel<<<grid, kThreads, 0, octet::cuda::native_stream(stream)>>>(
      op.x.as<BFloat16>(), op.x.row_stride, rows_are_aligned(op.x), rows, cols, static_cast<int>(rows_per_partial(rows)),
      partials.as<float>());
  octet::cuda::check_launch("column_sums");
  add_partials(stream, partials, op.y);
}

}  // namespace octet::kernels::cuda
