// Quantisation to FP8: amax, scale, cast and transpose. Bit-exact: the same codes and scales on every device (docs/numerics.md).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// For each tile: scale from amax (numerics/scale.h) or from `scale`; code = encode(float(bf16(x)) * scale); scale_inv = 1 /
// scale.
struct Quantize {
  Tensor x;  // [R, C] BF16, or F32 which is rounded to BF16 first; rows may be strided
  QuantSpec spec;
  Quantized out;  // overwritten; the parts that are present (codes, codes_t or both, each with its scales) are made.
                  // codes_t is [C, R to padded_k(R)] wide: columns from R on become zero codes (and their scales, where a tile
                  // has none of x, 1).
  // Per-tensor tile with ScaleSource::history only:
  const float* scale = nullptr;  // device scalar; the scale to cast with
  float* amax = nullptr;         // device scalar, optional: becomes max(*amax, amax of x), NaN winning
};
// The transposed version of row, 1x128 and MX tiles is quantised from x itself, with scales along R.
void quantize(Queue& queue, Arena& scratch, const Quantize& op);

// Whether tiles are the same of the transposed tensor.
constexpr bool is_square(ScaleTile tile) { return tile == ScaleTile::tensor || tile == ScaleTile::block_128x128; }

// The transposed part of codes that have it not, byte for byte what quantize() makes: codes_t [C, at least R], columns from R on
// zero, are overwritten from codes [R, C].
// Square tiles: scale_inv is read and scale_inv_t overwritten, too.
// Row and MX: codes are those along columns, made with the scales of scale_inv_t (shard.h); no scale is read or written.
void transpose_codes(Queue& queue, const Quantized& q);

// Where an op that makes an operand of FP8 GEMMs puts its result y when codes are wanted and y itself is not: the fields of
// Quantize without its x. The codes and scales are those of quantising y rounded to BF16, byte for byte; where device and recipe
// have a fused kernel, y never exists.
struct QuantizeTo {
  QuantSpec spec;
  Quantized out;  // no parts: codes are not wanted
  const float* scale = nullptr;
  float* amax = nullptr;

  explicit operator bool() const { return out.codes || out.codes_t; }
  Quantize of(const Tensor& x) const { return {.x = x, .spec = spec, .out = out, .scale = scale, .amax = amax}; }
};
// Whether a producer's CUDA kernels write these codes without y: all but those of MX.
bool fuses_on_cuda(const QuantizeTo& to);
// Whether scales are made of amaxes of the very tensor beyond 128 x 128 of it: its sources are then read twice.
constexpr bool needs_amax_first(const QuantSpec& spec) {
  return spec.tile == ScaleTile::row || (spec.tile == ScaleTile::tensor && spec.source == ScaleSource::tensor);
}
// Bytes of the codes and scales that are wanted.
std::size_t written_bytes(const QuantizeTo& to);

// amax[0] = max |x|, NaN winning. x [R, C] BF16 or F32 (rounded to BF16 first).
struct Amax {
  Tensor x;
  float* amax = nullptr;  // overwritten
};
void amax(Queue& queue, Arena& scratch, const Amax& op);

// The state of delayed scaling of n tensors after an optimizer step, as docs/numerics.md orders it.
struct UpdateDelayedScales {
  Tensor amax_history;  // [n, len] F32; [i, 0] is this step's amax; rolled
  Tensor scale;         // [n] F32; overwritten for tensors whose amax is entered
  Tensor format;        // [n] U8, an Fp8Format each
  Tensor is_weight;     // [n] U8: 1 for weights, whose [i, 0] is kept when nothing is entered (0 becomes of the others)
  int margin = 0;
  bool most_recent = false;          // amax = history[0] instead of max(history)
  const float* found_inf = nullptr;  // device scalar: not 0 means that the step is skipped and no scale or history moves
};
void update_delayed_scales(Queue& queue, const UpdateDelayedScales& op);

// How well codes represent x: one pass, for health samples.
struct QuantizeHealth {
  Tensor x;              // [R, C] as given to quantize
  Quantized q;           // its row-wise codes and scales
  float* out = nullptr;  // [5] F32 device: amax of x; scale (1/scale_inv; the geometric mean over many tiles); share of elements
                         // whose scaled magnitude exceeds the format's largest; share of non-zero elements with a zero code;
                         // signal to quantisation noise in dB (10 log10(sum x^2 / sum (x - decoded)^2)) of finite elements,
                         // infinite when nothing is lost
};
void quantize_health(Queue& queue, Arena& scratch, const QuantizeHealth& op);

}  // namespace octet::kernels
