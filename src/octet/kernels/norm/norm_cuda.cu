#include <cuda_runtime.h>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_cuda.h"
#include "octet/kernels/norm/norm_cpu.h"
#include "octet/kernels/norm/norm_cuda.h"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::stream_of;

constexpr int kThreads = 256;
constexpr int kAddThreads = 1024;

// The square of an FP32 number is exact in F64: the FMA saves an instruction and changes no bit.
__device__ void add_square(double& sum, float value) {
  const double wide = static_cast<double>(value);
  sum = fma(wide, wide, sum);
}

// One block, one piece.
template <class T>
__global__ void __launch_bounds__(kThreads) piece_kernel(const T* x, std::int64_t count, bool aligned, double* partials) {
  const std::int64_t first = std::int64_t{blockIdx.x} * cpu::kSumSquaresPiece;
  const T* piece = x + first;
  const int size = static_cast<int>(min(cpu::kSumSquaresPiece, count - first));
  const int vectors = aligned ? size / kWidth : 0;
  double sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    float values[kWidth];
    widen(values, load_eight(piece + i * kWidth));
    for (const float value : values) add_square(sum, value);
  }
  for (int i = vectors * kWidth + static_cast<int>(threadIdx.x); i < size; i += kThreads)
    add_square(sum, static_cast<float>(piece[i]));
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kAddThreads) add_kernel(const double* partials, std::int64_t count, double* total) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kAddThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

template <class T>
void launch_pieces(cudaStream_t stream, const Tensor& tensor, std::int64_t pieces, double* partials) {
  const T* x = tensor.as<T>();
  piece_kernel<<<static_cast<unsigned>(pieces), kThreads, 0, stream>>>(x, tensor.elements(), are_aligned(x), partials);
  check_launch("sum_squares");
}

}  // namespace

void sum_squares(Queue& queue, const SumSquares& op, double* partials) {
  const std::int64_t pieces = ceil_div(op.x.elements(), cpu::kSumSquaresPiece);
  if (pieces == 0) return;
  const cudaStream_t stream = stream_of(queue);
  if (op.x.dtype == DType::f32) {
    launch_pieces<float>(stream, op.x, pieces, partials);
  } else {
    require(op.x.dtype == DType::bf16, "sum_squares on CUDA: x is ", name_of(op.x.dtype), ", not F32 or BF16");
    launch_pieces<BFloat16>(stream, op.x, pieces, partials);
  }
  add_kernel<<<1, kAddThreads, 0, stream>>>(partials, pieces, op.total);
  check_launch("sum_squares");
}

}  // namespace octet::kernels::cuda
