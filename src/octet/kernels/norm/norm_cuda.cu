#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/norm/norm_cpu.h"
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

// The tensors of a launch. They are passed as a kernel parameter.
constexpr std::size_t kMostTensors = 96;  // must be less than 2 * 64, see piece_kernel
struct Tensors {
  const void* x[kMostTensors];
  std::int64_t count[kMostTensors];
  int first_piece[kMostTensors];  // within the launch
  bool narrow[kMostTensors];      // true: BF16; false: F32
  int tensors;
};

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

// One block sums one piece.
__global__ void __launch_bounds__(kThreads) piece_kernel(const __grid_constant__ Tensors tensors, double* partials) {
  const int piece = static_cast<int>(blockIdx.x);
  int tensor = 0;
  for (int step = 64; step > 0; step /= 2) {  // binary search for the last tensor that begins at or before `piece`
    if (tensor + step < tensors.tensors && tensors.first_piece[tensor + step] <= piece) tensor += step;
  }
  const std::int64_t first = std::int64_t{piece - tensors.first_piece[tensor]} * cpu::kSumSquaresPiece;
  const int size = static_cast<int>(min(cpu::kSumSquaresPiece, tensors.count[tensor] - first));
  const double sum = block_sum(tensors.narrow[tensor] ? thread_sum(static_cast<const BFloat16*>(tensors.x[tensor]) + first, size)
                                                      : thread_sum(static_cast<const float*>(tensors.x[tensor]) + first, size));
  if (threadIdx.x == 0) partials[piece] = sum;
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
  std::int64_t pieces = 0;  // over all launches
  Tensors launch{};
  std::int64_t of_launch = 0;
  const auto flush = [&] {
    if (of_launch == 0) return;
    piece_kernel<<<static_cast<unsigned>(of_launch), kThreads, 0, native>>>(launch, partials + pieces);
    check_launch("sum_squares");
    pieces += of_launch;
    of_launch = 0;
    launch.tensors = 0;
  };
  for (const Tensor& x : op.x) {
    require(x.dtype == DType::f32 || x.dtype == DType::bf16, "sum_squares on CUDA: x is ", name_of(x.dtype), ", not F32 or BF16");
    const std::int64_t of_tensor = cpu::sum_squares_pieces(x);
    if (of_tensor == 0) continue;
    if (launch.tensors == static_cast<int>(kMostTensors)) flush();
    const auto at = static_cast<std::size_t>(launch.tensors++);
    launch.x[at] = x.data;
    launch.count[at] = x.elements();
    launch.first_piece[at] = static_cast<int>(of_launch);
    launch.narrow[at] = x.dtype == DType::bf16;
    of_launch += of_tensor;
  }
  flush();
  if (pieces == 0) return;
  add_kernel<<<1, kAddThreads, 0, native>>>(partials, pieces, op.total);
  check_launch("sum_squares");
}

}  // namespace octet::kernels::cuda
