// From BF16 values in registers to FP8 codes in memory: scales, encoding, and stores of rowwise and columnwise codes.
#pragma once

#include <cuda_fp8.h>

#include <limits>

#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/tiles_cuda.cuh"
#include "octet/numerics/scale.h"

namespace octet::kernels::cuda {

// The same as scale_from_amax, but without its division in F64, which only constant evaluation needs.
__device__ inline float device_scale(float amax, const QuantSpec& spec) {
  if (amax < spec.epsilon) amax = spec.epsilon;
  if (amax == 0.0f || !is_finite(amax)) return 1.0f;
  const float quotient = fp8_max(spec.format) / amax;
  const float scale = is_finite(quotient) ? quotient : is_block(spec.tile) ? kBf16Max : std::numeric_limits<float>::max();
  return spec.power_of_2 ? __uint_as_float(__float_as_uint(scale) & 0xFF800000u) : scale;
}

// Multiplies BF16 values by their scales and rounds them to FP8 codes, saturating.
template <Fp8Format kFormat>
__device__ unsigned encode_pair(unsigned pair, float low_scale, float high_scale) {
  constexpr __nv_fp8_interpretation_t kKind = kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2({low_of(pair) * low_scale, high_of(pair) * high_scale}, __NV_SATFINITE, kKind);
}
template <Fp8Format kFormat>
__device__ uint2 encode(const Bf16Vector& values, float scale) {
  const uint4& words = values.parts[0];
  return {encode_pair<kFormat>(words.x, scale, scale) | encode_pair<kFormat>(words.y, scale, scale) << 16,
          encode_pair<kFormat>(words.z, scale, scale) | encode_pair<kFormat>(words.w, scale, scale) << 16};
}
template <Fp8Format kFormat>
__device__ uint2 encode(const Bf16Vector& values, const float4 (&scales)[2]) {
  const uint4& words = values.parts[0];
  const float4 a = scales[0], b = scales[1];
  return {encode_pair<kFormat>(words.x, a.x, a.y) | encode_pair<kFormat>(words.y, a.z, a.w) << 16,
          encode_pair<kFormat>(words.z, b.x, b.y) | encode_pair<kFormat>(words.w, b.z, b.w) << 16};
}

// Where codes are written. Rowwise or columnwise codes may be absent (null).
struct Codes {
  std::uint8_t* rowwise = nullptr;
  std::int64_t rowwise_stride = 0;
  std::uint8_t* columnwise = nullptr;  // transposed
  std::int64_t columnwise_stride = 0;
  int columnwise_width = 0;  // codes of a column, including padding
  bool wide_rowwise = false, wide_columnwise = false;

  // `part_cols` is the column at which the second part of the source's result begins.
  Codes(const Quantized& out, std::int64_t part_cols)
      : rowwise(out.rowwise.as_bytes()),
        rowwise_stride(out.rowwise.row_stride),
        columnwise(out.columnwise.as_bytes()),
        columnwise_stride(out.columnwise.row_stride),
        columnwise_width(out.columnwise ? static_cast<int>(out.columnwise.shape[1]) : 0),
        wide_rowwise(on_multiple(rowwise, kVector) && rowwise_stride % kVector == 0 && part_cols % kVector == 0),
        wide_columnwise(are_aligned(columnwise) && columnwise_stride % 16 == 0) {}

  // Stores the codes of the thread's rows 4 step to 4 step + 3.
  __device__ void store_rowwise(const Tile& tile, int step, const uint2 (&codes)[4]) const {
    if (wide_rowwise && tile.is_full()) {
      std::uint8_t* const at = rowwise + tile.row(4 * step) * rowwise_stride + tile.col();
#pragma unroll
      for (int i = 0; i < 4; ++i) *reinterpret_cast<uint2*>(at + i * rowwise_stride) = codes[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) store_row(tile, 4 * step + i, codes[i]);
  }
  __device__ void store_row(const Tile& tile, int i, uint2 codes) const {
    const int row = tile.row(i), col = tile.col();
    if (row >= tile.rows || col >= tile.cols) return;
    std::uint8_t* const at = rowwise + row * rowwise_stride + col;
    if (wide_rowwise && col + kVector <= tile.cols) {
      *reinterpret_cast<uint2*>(at) = codes;
      return;
    }
#pragma unroll 1
    for (int k = 0; k < min(kVector, tile.cols - col); ++k) {
      at[k] = static_cast<std::uint8_t>(codes.x);
      codes = {__funnelshift_r(codes.x, codes.y, 8), codes.y >> 8};
    }
  }
};

// A tile of codes that is transposed in shared memory. Column c has 32 words of four rows each. Word w is stored at w ^ 2 (c / 8
// % 16), so that lanes with different vectors and both halves of a warp use all banks, and pairs of words stay adjacent.
struct TransposedTile {
  unsigned words[kTile * kTile / 4];

  // Stores the codes of the thread's rows 4 step to 4 step + 3.
  __device__ void put(const Tile& tile, int step, const uint2 (&codes)[4]) {
    put_half(tile, step, 0, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    put_half(tile, step, 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
  }
  // Call it after a barrier. Writes 16 rows of a column at a time; codes after the last row are 0.
  __device__ void store(const Tile& tile, const Codes& out) const {
    constexpr int kPieces = kTile * kTile / 16 / kTileThreads;
    if (out.wide_columnwise && tile.is_full()) {
      const int column = static_cast<int>(threadIdx.x) / 8, part = static_cast<int>(threadIdx.x) % 8;
      std::uint8_t* const at = out.columnwise + (tile.col0 + column) * out.columnwise_stride + tile.row0 + part * 16;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        constexpr int kColumns = kTileThreads / 8;
        *reinterpret_cast<uint4*>(at + k * kColumns * out.columnwise_stride) = piece_of(k * kColumns + column, part);
      }
      return;
    }
#pragma unroll 1
    for (int k = 0; k < kPieces; ++k) {
      const int piece = k * kTileThreads + static_cast<int>(threadIdx.x);
      const int column = piece / 8, part = piece % 8;
      uint4 codes = piece_of(column, part);
      const int row = tile.row0 + part * 16, col = tile.col0 + column;
      if (col >= tile.cols || row >= out.columnwise_width) continue;
      if (row + 16 > tile.rows) {
        codes = {first_bytes(codes.x, tile.rows - row), first_bytes(codes.y, tile.rows - row - 4),
                 first_bytes(codes.z, tile.rows - row - 8), first_bytes(codes.w, tile.rows - row - 12)};
      }
      std::uint8_t* const at = out.columnwise + col * out.columnwise_stride + row;
      if (out.wide_columnwise && row + 16 <= out.columnwise_width) {
        *reinterpret_cast<uint4*>(at) = codes;
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < min(16, out.columnwise_width - row); ++i) {
        at[i] = static_cast<std::uint8_t>(codes.x);
        codes = {__funnelshift_r(codes.x, codes.y, 8), __funnelshift_r(codes.y, codes.z, 8), __funnelshift_r(codes.z, codes.w, 8),
                 codes.w >> 8};
      }
    }
  }

 private:
  __device__ uint4 piece_of(int column, int part) const {
    const int vector = column / kVector;
    const uint4 codes = *reinterpret_cast<const uint4*>(&words[column * 32 + 4 * (part ^ (vector / 2))]);
    return vector % 2 ? uint4{codes.z, codes.w, codes.x, codes.y} : codes;
  }
  // a, b, c and d are four columns of one row each.
  __device__ void put_half(const Tile& tile, int step, int first, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const unsigned ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    const int word = (tile.warp() * 4 + step * 2 + tile.lane() / 16) ^ (2 * tile.vector());
    unsigned* const at = &words[(tile.vector() * kVector + first) * 32 + word];
    at[0] = __byte_perm(ab, cd, 0x5410);
    at[32] = __byte_perm(ab, cd, 0x7632);
    at[64] = __byte_perm(ab_high, cd_high, 0x5410);
    at[96] = __byte_perm(ab_high, cd_high, 0x7632);
  }
  static __device__ unsigned first_bytes(unsigned word, int count) {
    return count <= 0 ? 0u : count >= 4 ? word : word & ((1u << (8 * count)) - 1u);
  }
};

// Writes rowwise and columnwise codes of a tile with one scale.
template <Fp8Format kFormat>
__device__ void write_codes(const Tile& tile, const Bf16Vector (&values)[kTileRows], float scale, const Codes& out,
                            TransposedTile& transposed) {
#pragma unroll
  for (int step = 0; step < kTileRows / 4; ++step) {
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = encode<kFormat>(values[4 * step + i], scale);
    }
    if (out.rowwise) out.store_rowwise(tile, step, codes);
    if (out.columnwise) transposed.put(tile, step, codes);
  }
  if (!out.columnwise) return;
  __syncthreads();
  transposed.store(tile, out);
}

// Writes columnwise codes of a tile with one scale per column.
template <Fp8Format kFormat>
__device__ void write_columnwise_codes(const Tile& tile, const Bf16Vector (&values)[kTileRows], const float* column_scales,
                                       const Codes& out, TransposedTile& transposed) {
  const float4* const at = reinterpret_cast<const float4*>(column_scales + tile.vector() * kVector);
  const float4 scales[] = {at[0], at[1]};
#pragma unroll
  for (int step = 0; step < kTileRows / 4; ++step) {
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = encode<kFormat>(values[4 * step + i], scales);
    transposed.put(tile, step, codes);
  }
  __syncthreads();
  transposed.store(tile, out);
}

// Calls f.template operator()<kFormat>().
template <class F>
void visit_format(Fp8Format format, F f) {
  if (format == Fp8Format::e4m3) {
    f.template operator()<Fp8Format::e4m3>();
  } else {
    f.template operator()<Fp8Format::e5m2>();
  }
}

inline float* scales_of(const Tensor& scales) { return scales ? scales.as<float>() : nullptr; }

}  // namespace octet::kernels::cuda
