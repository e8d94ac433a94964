#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/norm/norm_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kThreads = 256;
constexpr int kAddThreads = 1024;

// The square of an FP32 number is exact in F64, so the FMA saves an instruction without changing a bit.
__device__ void add_square(double& sum, float value) {
  const double wide = static_cast<double>(value);
  sum = fma(wide, wide, sum);
}

template <class T>
__device__ double thread_sum(const T* piece, int size) {
  const int vectors = are_aligned(piece) ? size / kVector : 0;
  double sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    float values[kVector];
    unpack(load_vector(piece + i * kVector), values);
    for (const float value : values) add_square(sum, value);
  }
  for (int i = vectors * kVector + static_cast<int>(threadIdx.x); i < size; i += kThreads)
    add_square(sum, static_cast<float>(piece[i]));
  return sum;
}

// One block sums one chunk.
__global__ void __launch_bounds__(kThreads) chunk_kernel(const TensorList::Item* items, const Chunk* chunks, double* partials) {
  const Chunk chunk = chunks[blockIdx.x];
  const TensorList::Item x = items[chunk.item];
  const std::int64_t first = chunk.number * TensorList::kChunk;
  const int size = static_cast<int>(min(TensorList::kChunk, x.count - first));
  const double sum = block_sum(x.dtype == DType::bf16 ? thread_sum(static_cast<const BFloat16*>(x.data) + first, size)
                                                      : thread_sum(static_cast<const float*>(x.data) + first, size));
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kAddThreads) add_kernel(const double* partials, std::int64_t count, double* total) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kAddThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

void sum_squares(Stream& stream, const SumSquares& op, double* partials) {
  const cudaStream_t native = native_stream(stream);
  for (const Tensor& x : op.x.tensors()) {
    require(x.dtype == DType::f32 || x.dtype == DType::bf16, "sum_squares on CUDA: x is ", name_of(x.dtype), ", not F32 or BF16");
  }
  const OpTable<TensorList::Item>& table = op.x.table();
  if (table.chunks() == 0) return;
  chunk_kernel<<<static_cast<unsigned>(table.chunks()), kThreads, 0, native>>>(table.items_of_device(), table.chunks_of_device(),
                                                                               partials);
  check_launch("sum_squares");
  add_kernel<<<1, kAddThreads, 0, native>>>(partials, table.chunks(), op.total);
  check_launch("sum_squares");
}

}  // namespace octet::kernels::cuda
