// An operand of FP8 GEMMs: codes and scales, row-wise (for the GEMM that sums over columns) and transposed (for the GEMM that
// sums over rows).
#pragma once

#include "octet/base/math.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/tensor.h"

namespace octet {

// Of x [R, C]. Each part may be absent (null data) when nobody needs it.
//   codes       [R, C]            the format's codes, scaled along C
//   codes_t     [C, pad(R)]       scaled along R; columns from R on are zero codes (K of a GEMM is padded, see padded_tokens)
//   scale_inv   by tile: tensor [1]; row [R]; block_1x128 [ceil(C/128), R]; block_128x128 [ceil(R/128), ceil(C/128)]; mx [R, ceil(C/32)]
//   scale_inv_t the same of the transposed tensor: [1]; [C]; [ceil(R/128), C]; [ceil(C/128), ceil(R/128)]; [C, pad(R)/32]
// FP32, but E8M0 for MX. For the tensor tile scale_inv_t is scale_inv itself. block_1x128 scales stand K-block by K-block, as
// cuBLASLt reads them. A value is code * scale_inv of its tile.
struct Quantized {
  Fp8Format format = Fp8Format::e4m3;
  ScaleTile tile = ScaleTile::tensor;
  Tensor codes, scale_inv;
  Tensor codes_t, scale_inv_t;
};

// Device scalars of one tensor's delayed scaling; null for every other scale source.
struct ScaleSlot {
  const float* scale = nullptr;
  float* amax = nullptr;  // this step's largest magnitude so far: history[0]
};

// What the summed dim is padded to, with zero codes and scale 1: the smallest K step of the GEMMs, a whole tile for block and MX.
constexpr std::int64_t k_multiple(ScaleTile tile) { return is_block(tile) || tile == ScaleTile::mx_1x32 ? 128 : 16; }
constexpr std::int64_t padded_k(std::int64_t k, ScaleTile tile) { return round_up(k, k_multiple(tile)); }

// Shape of the row-wise scales of an operand [rows, k] (k padded or not).
inline Shape scale_shape(ScaleTile tile, std::int64_t rows, std::int64_t k) {
  switch (tile) {
    case ScaleTile::tensor: return {1};
    case ScaleTile::row: return {rows};
    case ScaleTile::block_1x128: return {ceil_div(k, 128), rows};
    case ScaleTile::block_128x128: return {ceil_div(rows, 128), ceil_div(k, 128)};
    case ScaleTile::mx_1x32: return {rows, ceil_div(k, 32)};
  }
  return {};
}
constexpr DType scale_dtype(ScaleTile tile) { return tile == ScaleTile::mx_1x32 ? DType::e8m0 : DType::f32; }

}  // namespace octet
