#include "octet/device/cuda/cuda.h"
#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/numerics/scale.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct DelayedScales {
  float* history;
  std::int64_t stride;
  int length;
  float* scale;
  const std::uint8_t* format;
  const std::uint8_t* is_weight;
  int margin;
  bool most_recent;
  const float* found_inf;
};

__device__ float block_max(float value) {
  __shared__ unsigned warps[kThreads / 32];
  const unsigned of_warp = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(value));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  unsigned largest = 0;
  for (const unsigned warp : warps) largest = max(largest, warp);
  return __uint_as_float(largest);
}

// One block per tensor.
__global__ void __launch_bounds__(kThreads) update_delayed_scales_kernel(const DelayedScales op) {
  const int tensor = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  float* const history = op.history + tensor * op.stride;
  const float now = history[0];
  float largest = now;
  for (int i = thread; i < op.length && !op.most_recent; i += kThreads) largest = max_magnitude(largest, history[i]);
  largest = block_max(largest);  // its barrier also ensures that every thread has read history[0]
  const bool skipped = op.found_inf && *op.found_inf != 0.0f;
  if (skipped || !(now > 0.0f) || !is_finite(now)) {
    if (thread == 0 && op.is_weight[tensor] == 0) history[0] = 0.0f;
    return;
  }
  if (thread == 0) op.scale[tensor] = delayed_scale(largest, static_cast<Fp8Format>(op.format[tensor]), op.margin);
  // Starts at the end, so that each element is moved before it is overwritten.
  for (int end = op.length; end > 0; end -= kThreads) {
    const int i = end - 1 - thread;
    const float moved = i > 0 ? history[i - 1] : 0.0f;
    __syncthreads();
    if (i >= 0) history[i] = moved;
    __syncthreads();
  }
}

}  // namespace

void update_delayed_scales(Stream& stream, const UpdateDelayedScales& op) {
  if (op.amax_history.rows() == 0) return;
  update_delayed_scales_kernel<<<static_cast<unsigned>(op.amax_history.rows()), kThreads, 0,
                                 octet::cuda::native_stream(stream)>>>({.history = op.amax_history.as<float>(),
                                                                        .stride = op.amax_history.row_stride,
                                                                        .length = static_cast<int>(op.amax_history.shape[1]),
                                                                        .scale = op.scale.as<float>(),
                                                                        .format = op.format.as_bytes(),
                                                                        .is_weight = op.is_weight.as_bytes(),
                                                                        .margin = op.margin,
                                                                        .most_recent = op.most_recent,
                                                                        .found_inf = op.found_inf});
  octet::cuda::check_launch("update_delayed_scales");
}

}  // namespace octet::kernels::cuda
