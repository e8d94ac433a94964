// Quantisation to FP8: amax, scale, cast and transpose. All devices
// give the same codes and scales, bit for bit (docs/numerics.md).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// For each tile, the scale is computed from the amax (numerics/scale.h) or is `scale`. Then code = encode(float(bf16(x)) *
// scale) and scale_inv = 1 / scale.
struct Quantize {
  Tensor x;  // [R, C] BF16, or F32, which is rounded to BF16 first; rows may be strided
  QuantSpec spec;
  Quantized out;  // overwritten. The parts that are present are computed: codes, columnwise or both, each with its scales.
                  // columnwise is [C, W] with R <= W <= padded_k(R). Columns from R on become zero codes; tiles that consist only
                  // of such columns get scale 1.
  const float* scale = nullptr;  // device scalar, for the per-tensor tile with ScaleSource::history only: the scale to cast with
  float* amax = nullptr;  // device scalar, optional, for the per-tensor tile: becomes max(*amax, amax of x); NaN propagates
  // Rows in groups are quantised as one tensor for each group (the shapes of scales: tensor/row_groups.h). x has zeros between
  // groups. The strides are the distances in floats between the scales, and between the amaxes, of consecutive groups.
  RowGroups groups = {};
  std::int64_t scale_stride = 0, amax_stride = 0;
};
// For row, 1x128 and MX tiles, the transposed part is quantised from x itself, with scales along R.
void quantize(Stream& stream, Arena& scratch, const Quantize& op);

// Whether the transposed tensor has the same tiles.
constexpr bool is_square(ScaleTile tile) { return tile == ScaleTile::tensor || tile == ScaleTile::block_128x128; }

// Computes the transposed part of codes that do not have one, byte for byte as quantize() would.
// columnwise [C, at least R] is overwritten from codes [R, C]; its columns from R on become zero. Square
// tiles: scale_inv is read and columnwise_scale_inv is overwritten. Row and MX tiles: `codes` must have been
// scaled along columns, with the scales of columnwise_scale_inv (shard.h). No scale is read or written.
void transpose_codes(Stream& stream, const Quantized& q);

// y = float(code) * scale_inv of rowwise codes with one scale for the tensor, rounded to BF16.
struct DecodeCodes {
  Quantized q;  // [R, C], contiguous
  Tensor y;     // [R, C] BF16; rows may be strided; overwritten
};
void decode_codes(Stream& stream, const DecodeCodes& op);

// Where an op writes its result y as an operand of FP8 GEMMs, if codes are wanted instead of y. The fields are those of Quantize
// without x. Codes and scales are byte for byte those of quantising y rounded to BF16. A fused kernel, if there is one for the
// device and recipe, never writes y to memory.
struct QuantizeEpilogue {
  QuantSpec spec;
  Quantized out;  // no parts: no codes are wanted
  const float* scale = nullptr;
  float* amax = nullptr;
  RowGroups groups = {};  // also without parts: y's rows of these groups alone are computed
  std::int64_t scale_stride = 0, amax_stride = 0;

  explicit operator bool() const { return out.rowwise || out.columnwise; }
  Quantize of(const Tensor& x) const {
    return {.x = x,
            .spec = spec,
            .out = out,
            .scale = scale,
            .amax = amax,
            .groups = groups,
            .scale_stride = scale_stride,
            .amax_stride = amax_stride};
  }
};
// Completes rowwise codes that were cast with the scales of `to`, which come from a history: writes 1 / scale, and the
// columnwise codes if there are any. The result is byte for byte what quantize() writes.
void complete_codes(Stream& stream, const QuantizeEpilogue& to);
// Whether the CUDA kernels of ops can write these codes without writing y. They can for all tiles except MX.
bool fuses_on_cuda(const QuantizeEpilogue& to);
// Whether a scale depends on more of the tensor than a block of 128 x 128. The amax then needs a separate pass over the source.
constexpr bool needs_amax_first(const QuantSpec& spec) {
  return spec.tile == ScaleTile::row || (spec.tile == ScaleTile::tensor && spec.source == ScaleSource::tensor);
}
// Bytes of the codes and scales that are written.
std::size_t written_bytes(const QuantizeEpilogue& to);

// amax[0] = max |x|; NaN propagates. x [R, C] is BF16, or F32, which is rounded to BF16 first.
struct Amax {
  Tensor x;
  float* amax = nullptr;  // overwritten
};
void amax(Stream& stream, Arena& scratch, const Amax& op);

// Updates the delayed scaling of n tensors after an optimizer step (docs/numerics.md). If tensor i's amax [i, 0] is positive and
// finite, its scale is recomputed and its history is shifted by one; otherwise its scale stays.
struct UpdateDelayedScales {
  Tensor amax_history;  // [n, len] F32; updated; [i, 0] is this step's amax
  Tensor scale;         // [n] F32; overwritten if the tensor's amax is positive and finite
  Tensor format;        // [n] U8, values of Fp8Format
  Tensor is_weight;     // [n] U8, 1 for weights. An unused amax [i, 0] stays for weights and becomes 0 for other tensors
  int margin = 0;
  bool most_recent = false;          // use history[0] instead of max(history)
  const float* found_inf = nullptr;  // device scalar: if it is not 0, the step is skipped and no amax is used
};
void update_delayed_scales(Stream& stream, const UpdateDelayedScales& op);

// Measures, in one pass, how well codes represent x, and how far its largest elements stand out. For health samples. Elements
// that are not finite are left out of sums.
inline constexpr int kHealthValues = 7;
struct QuantizeHealth {
  Tensor x;              // [R, C] as given to quantize
  Quantized q;           // its rowwise codes and scales
  float* out = nullptr;  // [7] F32 device, overwritten: amax of x; scale = 1 / scale_inv (geometric mean over several tiles);
                         // fraction of elements whose scaled magnitude exceeds the format's largest value; fraction of non-zero
                         // elements with a zero code; signal to quantisation noise of finite elements in dB,
                         // 10 log10(sum x^2 / sum (x - decoded)^2), infinite if there is no error; kurtosis
                         // n sum x^4 / (sum x^2)^2 and root mean square of the n elements that are not zero, so that the rows
                         // which fill up an expert's tiles do not count
};
void quantize_health(Stream& stream, Arena& scratch, const QuantizeHealth& op);

}  // namespace octet::kernels
