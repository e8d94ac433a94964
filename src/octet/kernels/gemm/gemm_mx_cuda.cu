#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/gemm/gemm_mx_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kGroup = 16;  // codes per thread: a 16-byte load, half of a scale's block

// Each block of threads decodes a row.
template <__nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads)
    decode_rows(const std::uint8_t* codes, std::int64_t stride, const std::uint8_t* scales, std::int64_t k, bool aligned,
                Bf16Vector* out) {
  const std::int64_t row = blockIdx.x, groups = ceil_div(k, kGroup);
  codes += row * stride;
  scales += row * ceil_div(k, 32);
  out += row * groups * (kGroup / kVector);
  for (std::int64_t group = threadIdx.x; group < groups; group += kThreads) {
    union {
      uint4 vector;
      std::uint8_t bytes[kGroup];
      __nv_fp8x2_storage_t pairs[kGroup / 2];
    } in;
    if (aligned && (group + 1) * kGroup <= k) {
      in.vector = reinterpret_cast<const uint4*>(codes)[group];
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) in.bytes[i] = group * kGroup + i < k ? codes[group * kGroup + i] : std::uint8_t{0};
    }
    union Decoded {
      Bf16Vector vectors[kGroup / kVector];
      __nv_bfloat162 pairs[kGroup / 2];
      __device__ Decoded() {}
    } decoded;
    const float scale = decode_e8m0(scales[group / 2]);
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) {
      const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(in.pairs[i], kFormat)));
      decoded.pairs[i] = __floats2bfloat162_rn(pair.x * scale, pair.y * scale);
    }
    out[2 * group] = decoded.vectors[0];
    out[2 * group + 1] = decoded.vectors[1];
  }
}

// Each thread stores the scales of 4 blocks of a row. In a tile, row r is in the 16-byte line r % 32, at word r / 32.
__global__ void __launch_bounds__(kThreads)
    tile_scales(const std::uint8_t* scales, std::int64_t rows, std::int64_t blocks, std::uint32_t* out) {
  const std::int64_t row = blockIdx.x, quads = ceil_div(blocks, 4);
  for (std::int64_t quad = threadIdx.x; quad < quads; quad += kThreads) {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t block = quad * 4 + i;
      if (row < rows && block < blocks) word |= std::uint32_t{scales[row * blocks + block]} << (8 * i);
    }
    out[(row / 128 * quads + quad) * 128 + row % 32 * 4 + row % 128 / 32] = word;
  }
}

}  // namespace

void decode_mx(Stream& stream, const GemmOperand& x, BFloat16* out) {
  const std::uint8_t* codes = x.values.as_bytes();
  const bool aligned = on_multiple(codes, 16) && x.values.row_stride % 16 == 0;
  const auto kernel = x.values.dtype == DType::f8_e4m3 ? decode_rows<__NV_E4M3> : decode_rows<__NV_E5M2>;
  kernel<<<static_cast<unsigned>(x.values.rows()), kThreads, 0, octet::cuda::native_stream(stream)>>>(
      codes, x.values.row_stride, x.scale_inv.as_bytes(), x.values.cols(), aligned, reinterpret_cast<Bf16Vector*>(out));
  octet::cuda::check_launch("decode_mx");
}

void tile_mx_scales(Stream& stream, const GemmOperand& x, std::uint8_t* out) {
  const std::int64_t rows = x.values.rows();
  tile_scales<<<static_cast<unsigned>(round_up(rows, 128)), kThreads, 0, octet::cuda::native_stream(stream)>>>(
      x.scale_inv.as_bytes(), rows, ceil_div(x.values.cols(), 32), reinterpret_cast<std::uint32_t*>(out));
  octet::cuda::check_launch("tile_mx_scales");
}

}  // namespace octet::kernels::cuda
