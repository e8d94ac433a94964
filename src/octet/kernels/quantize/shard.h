// Quantisation of a weight that is sharded over several ranks. Each rank casts its own shard. The concatenated codes of the
// shards are byte for byte those that quantize() gives for the whole weight. The steps are:
//   shard_amax        for each shard; then the ranks all-reduce the amaxes with max (NaN propagates)
//   scales_from_amax  from the reduced amaxes, with the same result on every rank
//   cast_shard        for each shard; then the ranks gather the codes
//   transpose_codes   (quantize.h) of the gathered codes
// Scales from history need no shard_amax and scales_from_amax. Supports the tiles of weights: tensor, row, 128x128 and MX.
#pragma once

#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Elements [first, first + count) in row-major order of a weight W [R, C].
struct Shard {
  Tensor x;                // [count] BF16, or F32, which is rounded to BF16 first; contiguous; count may be 0
  std::int64_t first = 0;  // first and first + count are multiples of 128 or equal R C
  Shape whole;             // [R, C]
};

// The direction in which elements share a scale: rows for fprop (Quantized::codes), columns for dgrad (columnwise). Square tiles,
// that is tensor and 128x128, have the same codes in both directions and use only `rows`.
enum class Along : std::uint8_t { rows, columns };

// The shape of the F32 amaxes of W [R, C], and of the multipliers computed from them:
//   tensor [1]; row [R], along columns [C]; 128x128 [ceil(R/128), ceil(C/128)]; MX [R, ceil(C/32)], along columns [ceil(R/32), C]
Shape amax_shape(ScaleTile tile, Along along, const Shape& whole);

// amax = max(amax, magnitudes of the shard) for each tile of W; NaN propagates. Amaxes of tiles without elements of the shard
// keep their values. The caller must have zeroed all amaxes. Reads x once.
struct ShardAmax {
  Shard shard;
  ScaleTile tile = ScaleTile::tensor;
  Tensor rows;     // amax_shape(tile, rows, whole), contiguous, accumulated into; absent if not wanted
  Tensor columns;  // the same along columns
};
void shard_amax(Stream& stream, const ShardAmax& op);

// Computes the scales of a whole W from its amaxes, with the bits of quantize().
struct ScalesFromAmax {
  Tensor amax;  // F32 amax_shape(spec.tile, along, whole), reduced over all shards
  QuantSpec spec;
  Along along = Along::rows;
  Shape whole;
  Tensor multipliers;  // F32 of amax's shape, overwritten: factors for values before the cast; may be amax itself
  Tensor scale_inv;    // overwritten: Quantized::scale_inv, or along columns columnwise_scale_inv including its padding
};
void scales_from_amax(Stream& stream, const ScalesFromAmax& op);

// code = encode(float(bf16(x)) * multiplier of its tile). All codes, also those scaled along columns, are in the row-major order
// of W. Per-tensor scales from history use `scale` instead of multipliers.
struct CastShard {
  Shard shard;
  QuantSpec spec;
  Tensor codes;         // [count] of the format, contiguous, overwritten; absent if not wanted
  Tensor multipliers;   // from scales_from_amax along rows
  Tensor column_codes;  // codes scaled along columns, for transpose_codes; one pass over x computes both
  Tensor column_multipliers;
  // Only for the per-tensor tile with ScaleSource::history:
  const float* scale = nullptr;  // device scalar: the scale to cast with
  Tensor scale_inv;              // [1], overwritten with 1 / scale even if count is 0
  float* amax = nullptr;         // device scalar, optional: becomes max(*amax, amax of x); NaN propagates
};
void cast_shard(Stream& stream, const CastShard& op);

}  // namespace octet::kernels
