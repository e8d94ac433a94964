// An operand of FP8 GEMMs: codes and scales, in one or both directions. The GEMM that sums over the columns of the tensor reads
// the rowwise codes, the GEMM that sums over its rows the columnwise ones. The names are those of Transformer Engine.
#pragma once

#include "octet/base/math.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/tensor.h"

namespace octet {

// The quantised form of x [R, C]. A direction that no GEMM reads may be absent (null data). A value is its code * its scale_inv.
//   rowwise               [R, C]       codes scaled along C
//   columnwise            [C, pad(R)]  codes scaled along R and transposed, because this GEMM's K is R; codes from column R on
//                                      are 0. pad(R) = padded_k(R, tile).
//   rowwise_scale_inv     by tile: tensor [1]; row [R]; block_1x128 [ceil(C/128), R]; block_128x128 [ceil(R/128), ceil(C/128)];
//                         mx [R, ceil(C/32)]
//   columnwise_scale_inv  the same for xᵀ: [1]; [C]; [ceil(R/128), C]; [ceil(C/128), ceil(R/128)]; [C, pad(R)/32]
// Scales are FP32; MX scales are E8M0. With the tensor tile, both scales are the same memory, and there may be no columnwise
// codes: see rowwise_serves_both(). block_1x128 scales are stored by block of K, because cuBLASLt reads them in this order.
struct Quantized {
  Fp8Format format = Fp8Format::e4m3;
  ScaleTile tile = ScaleTile::tensor;
  Tensor rowwise, rowwise_scale_inv;
  Tensor columnwise, columnwise_scale_inv;

  // Whether the GEMM that sums over rows also reads the rowwise codes, with K first. Only some devices can (kernels/gemm).
  bool rowwise_serves_both() const { return tile == ScaleTile::tensor && !columnwise && columnwise_scale_inv; }
};

// Device scalars of one tensor's delayed scaling. They are null for every other scale source.
struct ScaleSlot {
  const float* scale = nullptr;
  float* amax = nullptr;  // the largest magnitude of this step so far: history[0]
};

// The summed dimension with its padding, which has zero codes and scale 1. It is a multiple of a whole tile for block and MX
// tiles, otherwise of the smallest step in K of the GEMMs.
constexpr std::int64_t padded_k(std::int64_t k, ScaleTile tile) {
  return round_up(k, is_block(tile) || tile == ScaleTile::mx_1x32 ? 128 : 16);
}

// The shape of the rowwise scales of an operand [rows, k]. k may be padded or not.
inline Shape scale_shape(ScaleTile tile, std::int64_t rows, std::int64_t k) {
  switch (tile) {
    case ScaleTile::tensor:
      return {1};
    case ScaleTile::row:
      return {rows};
    case ScaleTile::block_1x128:
      return {ceil_div(k, 128), rows};
    case ScaleTile::block_128x128:
      return {ceil_div(rows, 128), ceil_div(k, 128)};
    case ScaleTile::mx_1x32:
      return {rows, ceil_div(k, 32)};
  }
  return {};
}
constexpr DType scale_dtype(ScaleTile tile) { return tile == ScaleTile::mx_1x32 ? DType::e8m0 : DType::f32; }

}  // namespace octet
