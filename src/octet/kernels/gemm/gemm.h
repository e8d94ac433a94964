// Matrix product  D = A · Bᵀ (+ C), both operands with the summed dim K last ("K-major").
#pragma once

#include <string>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct GemmOperand {
  Tensor values;  // [rows, K] FP8 codes, BF16, F32 or F64; [K, rows] when `layout` is k_first
  enum class Layout : std::uint8_t { k_last, k_first };
  Layout layout = Layout::k_last;  // FP8 only k_last, as Hopper takes it
  Tensor scale_inv = {};           // FP8 only: of `tile`, as in tensor/quantized.h
  ScaleTile tile = ScaleTile::tensor;
};

// The transpose of a tensor of values as an operand: nothing is copied.
inline GemmOperand transposed_values(const Tensor& x) { return {.values = x, .layout = GemmOperand::Layout::k_first}; }
// The row-wise (along columns) or the transposed (along rows) version of a quantised tensor as an operand.
inline GemmOperand row_operand(const Quantized& q) { return {.values = q.codes, .scale_inv = q.scale_inv, .tile = q.tile}; }
inline GemmOperand transposed_operand(const Quantized& q) {
  return {.values = q.codes_t, .scale_inv = q.scale_inv_t, .tile = q.tile};
}

struct Gemm {
  GemmOperand a;  // [M, K]
  GemmOperand b;  // [N, K], of the same kind (FP8 formats and tiles may differ)
  Tensor c = {};  // [M, N] of D's dtype, optional; may be D itself, then the product is added to it
  Tensor d;       // [M, N] BF16, F32 or F64; overwritten
  Accumulation accumulation = Accumulation::precise;  // Hopper's FP8 accumulator; the CPU always sums in FP32 (F64 for F64)
};

// Deterministic on the CPU, whatever the number of threads. The CPU decodes BF16 and FP8 operands to FP32, a piece of a few MiB
// per thread at a time in `scratch`: codes alone for tensor and row tiles, code * scale_inv for block and MX tiles. It sums in
// FP32 (F64 for F64); then comes (sum * a.scale_inv) * b.scale_inv for tensor and row tiles, then + C, then the one rounding to
// D's dtype. On CUDA some of cuBLASLt's algorithms round a product to BF16 once more before they add a C in BF16.
// F32 operands on CUDA: D in F32 alone, products in full FP32.
// Both tiles are of one kind: tensor, row, block or MX. Throws Error{internal} for shapes, dtypes or tiles that do not fit, also
// for 128x128 with 128x128, which no device multiplies.
void gemm(Queue& queue, Arena& scratch, const Gemm& op);

// The kernel family that OpenBLAS runs on this processor ("SkylakeX", "Haswell", ...), for `octet doctor`.
const char* gemm_core_name();
// "cuBLASLt 13.1.0"; empty without the CUDA backend.
std::string gemm_library_version();

}  // namespace octet::kernels
