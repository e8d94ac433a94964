// Tokens to the rows that experts multiply, and back. Every token t has k rows, one for each of its experts; the rows of an
// expert stand together, in the order of the tokens, and experts one after the other.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Where the rows stand. Expert e begins at the sum over the experts before it of their counts, each rounded up to `multiple`.
struct ExpertOrder {
  Tensor experts;  // [T, k] I32 in [0, E), all different in a row
  std::int64_t multiple = 1;
  Tensor counts;  // [E] I32, overwritten: rows of each expert
  Tensor rows;    // [T, k] I32, overwritten
};
void expert_order(Queue& queue, const ExpertOrder& op);

// y[rows[t, s]] = weights[t, s] x[t], rounded once; weights default to 1. Other rows of y stay as they are.
struct ExpertScatter {
  Tensor x;        // [T, D] BF16, F32 or F64
  Tensor rows;     // [T, k] I32, all different and in [0, R)
  Tensor weights;  // [T, k] F32 (F64 for F64), or absent
  Tensor y;        // [R, D] of x's dtype
};
void expert_scatter(Queue& queue, const ExpertScatter& op);

// y[t] = residual[t] + sum over s of weights[t, s] x[rows[t, s]], summed in FP32 (F64) and rounded once.
struct ExpertCombine {
  Tensor x;         // [R, D] BF16, F32 or F64
  Tensor rows;      // [T, k] I32 in [0, R)
  Tensor weights;   // [T, k] F32 (F64 for F64), or absent: 1
  Tensor residual;  // [T, D] of x's dtype, or absent
  Tensor y;         // [T, D] of x's dtype, overwritten; may be the residual
};
void expert_combine(Queue& queue, const ExpertCombine& op);

// gweights[t, s] = gy[t] . x[rows[t, s]], in FP32 (F64).
struct ExpertDot {
  Tensor gy;        // [T, D] BF16, F32 or F64
  Tensor x;         // [R, D] of gy's dtype
  Tensor rows;      // [T, k] I32 in [0, R)
  Tensor gweights;  // [T, k] F32 (F64 for F64), overwritten
};
void expert_dot(Queue& queue, const ExpertDot& op);

}  // namespace octet::kernels
