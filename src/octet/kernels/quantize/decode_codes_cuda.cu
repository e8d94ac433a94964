#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/kernels/vector_cuda.cuh"
#include "octet/numerics/float8.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kDecodeThreads = 256;
constexpr int kGroup = 16;  // codes of a thread: one load of 16 bytes

// Two codes as BF16 pairs, with the CPU's bits also of NaN, whose sign and payload conversions and products lose.
template <Fp8Format kFormat>
__device__ unsigned decode_pair(unsigned codes, float factor) {
  constexpr __nv_fp8_interpretation_t kKind = kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, kKind)));  // exact
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(values.x * factor, values.y * factor);
  unsigned bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  if (isnan(values.x)) bits = (bits & 0xFFFF0000u) | 0x7FC0u | (codes & 0x80u) << 8;
  if (isnan(values.y)) bits = (bits & 0x0000FFFFu) | 0x7FC00000u | (codes & 0x8000u) << 16;
  return bits;
}

template <Fp8Format kFormat>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_kernel(const std::uint8_t* codes, const float* scale_inv, BFloat16* y, std::int64_t cols, std::int64_t stride,
                  std::int64_t count, bool aligned) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kDecodeThreads + threadIdx.x) * kGroup;
  const float factor = *scale_inv;
  const auto place = [=](std::int64_t i) { return stride == cols ? i : i / cols * stride + i % cols; };
  if (aligned && begin + kGroup <= count) {
    const uint4 in = *reinterpret_cast<const uint4*>(codes + begin);
    const auto four = [factor](unsigned word) {
      return uint2{decode_pair<kFormat>(word & 0xFFFFu, factor), decode_pair<kFormat>(word >> 16, factor)};
    };
    const uint2 a = four(in.x), b = four(in.y), c = four(in.z), d = four(in.w);
    auto* const out = reinterpret_cast<uint4*>(y + place(begin));
    out[0] = {a.x, a.y, b.x, b.y};
    out[1] = {c.x, c.y, d.x, d.y};
  } else {
    for (std::int64_t i = begin; i < min(begin + kGroup, count); ++i)
      y[place(i)] = BFloat16::from_bits(static_cast<std::uint16_t>(decode_pair<kFormat>(codes[i], factor)));
  }
}

}  // namespace

void decode_codes(Stream& stream, const DecodeCodes& op) {
  const std::int64_t count = op.y.elements();
  if (count == 0) return;
  const std::uint8_t* const codes = op.q.rowwise.as_bytes();
  auto* const y = op.y.as<BFloat16>();
  const std::int64_t cols = op.y.cols(), stride = op.y.row_stride;
  // The codes of a thread lie in one row, or rows of y follow each other.
  const bool rows_fit = stride == cols || (cols % kGroup == 0 && stride % kGroup == 0);
  auto* const kernel = op.q.format == Fp8Format::e4m3 ? &decode_kernel<Fp8Format::e4m3> : &decode_kernel<Fp8Format::e5m2>;
  kernel<<<static_cast<unsigned>(ceil_div(count, std::int64_t{kDecodeThreads} * kGroup)), kDecodeThreads, 0,
           octet::cuda::native_stream(stream)>>>(codes, op.q.rowwise_scale_inv.as<float>(), y, cols, stride,
                                                 count, rows_fit && on_multiple(codes, kGroup) && are_aligned(y));
  octet::cuda::check_launch("decode_codes");
}

}  // namespace octet::kernels::cuda
