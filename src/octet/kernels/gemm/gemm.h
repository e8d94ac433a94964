// GEMM  D = factor A · Bᵀ (+ C). K, the dimension that is summed over, is the last dimension of both operands ("K-major").
#pragma once

#include <string>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct GemmOperand {
  Tensor values;  // [rows, K] FP8 codes, BF16, F32 or F64; [K, rows] if `layout` is k_first
  enum class Layout : std::uint8_t { k_last, k_first };
  Layout layout = Layout::k_last;  // of FP8 codes: see reads()
  Tensor scale_inv = {};           // FP8 only: scales for `tile`, see tensor/quantized.h
  ScaleTile tile = ScaleTile::tensor;

  std::int64_t rows() const { return values.shape[layout == Layout::k_last ? 0 : 1]; }
  std::int64_t k() const { return values.shape[layout == Layout::k_last ? 1 : 0]; }
};

// An operand that is the transpose of a tensor of values. Nothing is copied.
inline GemmOperand transposed_values(const Tensor& x) { return {.values = x, .layout = GemmOperand::Layout::k_first}; }
// The rowwise (scaled along columns) or columnwise (scaled along rows) codes of a quantised tensor as an operand.
inline GemmOperand row_operand(const Quantized& q) {
  return {.values = q.rowwise, .scale_inv = q.rowwise_scale_inv, .tile = q.tile};
}
inline GemmOperand transposed_operand(const Quantized& q) {
  if (q.rowwise_serves_both())
    return {.values = q.rowwise, .layout = GemmOperand::Layout::k_first, .scale_inv = q.rowwise_scale_inv, .tile = q.tile};
  return {.values = q.columnwise, .scale_inv = q.columnwise_scale_inv, .tile = q.tile};
}

// Whether a device's GEMMs read codes with K first if these have one scale, so that nobody has to transpose them. Hopper's do not.
constexpr bool reads_codes_k_first(DeviceKind target) { return target == DeviceKind::cpu; }
// Whether a device's GEMMs read an operand in its layout.
constexpr bool reads(DeviceKind target, const GemmOperand& x) {
  const bool any_layout = size_of(x.values.dtype) > 1 || (x.tile == ScaleTile::tensor && reads_codes_k_first(target));
  return any_layout || x.layout == GemmOperand::Layout::k_last;
}

struct Gemm {
  GemmOperand a;                                      // [M, K]
  GemmOperand b;                                      // [N, K], of the same kind as a; FP8 formats and tiles may differ
  Tensor c = {};                                      // [M, N] of D's dtype, optional; may be D itself, which then accumulates
  Tensor d;                                           // [M, N] BF16, F32 or F64; overwritten
  float factor = 1.0f;
  Accumulation accumulation = Accumulation::precise;  // of FP8 on Hopper; the CPU always sums in FP32 (F64 for F64)
  // Ranks with the same operands must get the same bits. So the product keeps the library's algorithm: each rank that times
  // algorithms (gemm_tuning.h) may choose another one.
  bool same_on_ranks = false;
};

// On the CPU the result is deterministic for any number of threads. The CPU decodes BF16 and FP8 operands to FP32, a few MiB
// per thread at a time, in `scratch`: codes for tensor and row tiles, code * scale_inv for block and MX tiles. It sums in FP32
// (F64 for F64). A processor with matrix tiles sums in the order of kernels/tiles/tile_kernel.h where BF16 holds the operands
// exactly: all but F32, F64, and codes with block scales that are not powers of two. For tensor and row tiles the CPU then
// computes (sum * a.scale_inv) * b.scale_inv. Finally it multiplies by the factor, adds C and rounds once to D's dtype. On
// CUDA, some of cuBLASLt's algorithms also round the product to BF16 before they add a BF16 C. F32 operands on CUDA require an
// F32 D; their products are computed in full FP32. Both tiles must be of one kind: tensor, row, block or MX. Throws
// Error{internal} if shapes, dtypes or tiles do not match, and for 128x128 times 128x128, which no device supports.
void gemm(Stream& stream, Arena& scratch, const Gemm& op);

// The kernel family that OpenBLAS uses on this processor ("SkylakeX", "Haswell", ...), for `octet doctor`.
const char* gemm_core_name();
// The kernel of kernels/tiles that multiplies BF16 and FP8 operands on this processor ("AMX-BF16", "AVX512-BF16"), or "" if
// OpenBLAS does.
const char* gemm_tiles_name();
// "cuBLASLt 13.1.0", or "" without the CUDA backend.
std::string gemm_library_version();

}  // namespace octet::kernels
