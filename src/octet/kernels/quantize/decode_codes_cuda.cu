#include <cuda_runtime.h>

#include <cstring>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kDecodeThreads = 256;

// The CPU's bits also of NaN, whose sign and payload a product on a GPU loses.
__device__ BFloat16 decoded(Fp8Format format, std::uint8_t code, float factor) {
  const float value = decode_fp8(format, code);
  return BFloat16(isnan(value) ? value : value * factor);
}

// Each thread decodes kVector codes, with one access to either memory if both are aligned.
__global__ void __launch_bounds__(kDecodeThreads) decode_kernel(const std::uint8_t* codes, const float* scale_inv,
                                                                Fp8Format format, BFloat16* y, std::int64_t count, bool aligned) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x) * kVector;
  const float factor = *scale_inv;
  if (aligned && begin + kVector <= count) {
    std::uint8_t in[kVector];
    BFloat16 out[kVector];
    const uint2 loaded = *reinterpret_cast<const uint2*>(codes + begin);
    std::memcpy(in, &loaded, sizeof in);
    for (int i = 0; i < kVector; ++i) out[i] = decoded(format, in[i], factor);
    Vector<BFloat16> stored;
    std::memcpy(&stored, out, sizeof out);
    store_vector_unsplit(y + begin, stored);
  } else {
    for (std::int64_t i = begin; i < min(begin + kVector, count); ++i) y[i] = decoded(format, codes[i], factor);
  }
}

}  // namespace

void decode_codes(Stream& stream, const DecodeCodes& op) {
  const std::int64_t count = op.y.elements();
  if (count == 0) return;
  const std::uint8_t* const codes = op.q.rowwise.as_bytes();
  auto* const y = op.y.as<BFloat16>();
  decode_kernel<<<static_cast<unsigned>(ceil_div(count, std::int64_t{kDecodeThreads} * kVector)), kDecodeThreads, 0,
                  octet::cuda::native_stream(stream)>>>(codes, op.q.rowwise_scale_inv.as<float>(), op.q.format, y, count,
                                                        on_multiple(codes, kVector) && are_aligned(y, y));
  octet::cuda::check_launch("decode_codes");
}

}  // namespace octet::kernels::cuda
