#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/row_cosines/row_cosines_cuda.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kWarpLanes = 32, kBlock = 256;

__device__ float rounded(BFloat16 x) { return static_cast<float>(x); }
__device__ float rounded(float x) { return static_cast<float>(BFloat16(x)); }

__device__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  return value;
}

// One warp for each pair of rows.
template <class T>
__global__ void __launch_bounds__(kBlock)
    row_cosines_kernel(const T* x, std::int64_t stride, std::int64_t pairs, std::int64_t cols, float* y) {
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / kWarpLanes;
  if (pair >= pairs) return;
  const T* const a = x + pair * stride;
  const T* const b = a + pairs * stride;
  float dot = 0, of_a = 0, of_b = 0;
  for (std::int64_t i = static_cast<int>(threadIdx.x) % kWarpLanes; i < cols; i += kWarpLanes) {
    const float u = rounded(a[i]), v = rounded(b[i]);
    dot += u * v;
    of_a += u * u;
    of_b += v * v;
  }
  dot = warp_sum(dot);
  of_a = warp_sum(of_a);
  of_b = warp_sum(of_b);
  const float lengths = sqrtf(of_a) * sqrtf(of_b);
  if (threadIdx.x % kWarpLanes == 0) y[pair] = lengths > 0 ? fabsf(dot) / lengths : 0.0f;
}

}  // namespace

void row_cosines(Stream& stream, const RowCosines& op) {
  const std::int64_t pairs = op.x.rows() / 2;
  if (pairs == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(pairs * kWarpLanes, std::int64_t{kBlock}));
  const auto launch = [&]<class T>(const T* x) {
    row_cosines_kernel<<<blocks, kBlock, 0, octet::cuda::native_stream(stream)>>>(x, op.x.row_stride, pairs, op.x.cols(),
                                                                                  op.y.as<float>());
    octet::cuda::check_launch("row_cosines");
  };
  require(op.x.dtype == DType::bf16 || op.x.dtype == DType::f32, "row_cosines on CUDA: ", name_of(op.x.dtype),
          ", not BF16 or F32");
  if (op.x.dtype == DType::bf16) return launch(op.x.as<BFloat16>());
  launch(op.x.as<float>());
}

}  // namespace octet::kernels::cuda
