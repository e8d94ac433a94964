// Quantisation of a weight that lies in pieces on several ranks. Each casts its own piece, and the pieces' codes, one behind the
// other, are byte for byte those that quantize() makes of the whole:
//   shard_amax        of each piece; the grids are then reduced over the ranks by max, NaN winning
//   scales_from_amax  of the reduced grids, the same on every rank
//   cast_shard        of each piece; the codes are then gathered
//   transpose_codes   (quantize.h) of what was gathered
// With a scale from history the first two fall away. For weights only: the tiles tensor, row, 128x128 and MX.
#pragma once

#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Elements [first, first + count) of the row-major order of a weight W [R, C].
struct Shard {
  Tensor x;                // [count] BF16, or F32 which is rounded to BF16 first; contiguous; count may be 0
  std::int64_t first = 0;  // a multiple of 128, or R C of a shard without elements; so is first + count, which may be R C
  Shape whole;             // [R, C]
};

// What scales are made along: rows for the forward product (Quantized::codes), columns for the backward one (codes_t). Square
// tiles, tensor and 128x128, have the same codes in both and know rows alone.
enum class Along : std::uint8_t { rows, columns };

// Shape of the F32 amaxes, and of the multipliers made of them, of W [R, C]:
//   tensor [1]; row [R], along columns [C]; 128x128 [ceil(R/128), ceil(C/128)]; MX [R, ceil(C/32)], along columns [ceil(R/32), C]
Shape amax_shape(ScaleTile tile, Along along, const Shape& whole);

// amax = max(amax, the shard's magnitudes) for each tile of W, NaN winning; tiles that hold none of the shard stay. The caller
// has zeroed them. One pass over x.
struct ShardAmax {
  Shard shard;
  ScaleTile tile = ScaleTile::tensor;
  Tensor rows;     // amax_shape(tile, rows, whole), contiguous; absent: not wanted
  Tensor columns;  // the same along columns
};
void shard_amax(Queue& queue, const ShardAmax& op);

// Scales of a whole W from its amaxes, with the bits of quantize().
struct ScalesFromAmax {
  Tensor amax;  // F32 amax_shape(spec.tile, along, whole), over all shards
  QuantSpec spec;
  Along along = Along::rows;
  Shape whole;
  Tensor multipliers;  // F32 of amax's shape, overwritten: what values are multiplied by before they are encoded; may be amax
  Tensor scale_inv;    // overwritten: Quantized::scale_inv or, along columns, scale_inv_t, that of padding included
};
void scales_from_amax(Queue& queue, const ScalesFromAmax& op);

// code = encode(float(bf16(x)) * multiplier of its tile). Codes stand in the row-major order of W, those along columns, too.
// Scales per tensor from history: `scale` instead of multipliers.
struct CastShard {
  Shard shard;
  QuantSpec spec;
  Tensor codes;         // [count] of the format, contiguous, overwritten; absent: not wanted
  Tensor multipliers;   // as scales_from_amax makes them along rows
  Tensor column_codes;  // the same along columns, for transpose_codes; one pass over x makes both
  Tensor column_multipliers;
  // Per-tensor tile with ScaleSource::history only:
  const float* scale = nullptr;  // device scalar; the scale to cast with
  Tensor scale_inv;              // [1], overwritten by 1 / scale, whatever count is
  float* amax = nullptr;         // device scalar, optional: becomes max(*amax, amax of x), NaN winning
};
void cast_shard(Queue& queue, const CastShard& op);

}  // namespace octet::kernels
