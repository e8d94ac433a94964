// Root-mean-square norm of each head of Q and K (Henry et al., Query-Key Normalization for Transformers, 2020, with the norm of
// Qwen3). For each token and each head x of K numbers:
//   y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + epsilon);  all Q heads have one weight, all K heads another.
// Computed in FP32 (F64 for F64).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// A row of x holds q_heads heads of Q, then k_heads heads of K. V, the last columns of packed QKV, is not passed.
struct HeadNorm {
  std::int64_t head_dim = 0, q_heads = 0, k_heads = 0;
  Tensor q_weight, k_weight;  // [K] of x's dtype
  std::int64_t heads() const { return q_heads + k_heads; }
};

struct HeadNormForward {
  HeadNorm norm;
  Tensor x;  // [T, heads K] BF16, F32 or F64; rows may be strided; overwritten with y
  double epsilon = 1e-6;
  Tensor before;  // [T, heads K] of x's dtype; overwritten with what x was
  Tensor rstd;    // [T, heads] F32 (F64 for F64); overwritten
};
void head_norm_forward(Stream& stream, const HeadNormForward& op);

// With n = x * rstd:  gx = rstd * (g * weight - n * mean(g * weight * n)),  gweight += sum over tokens and heads of g * n.
// The order of the sum depends on the number of tokens alone.
struct HeadNormBackward {
  HeadNorm norm;
  Tensor before, rstd;          // of the forward pass
  Tensor g;                     // [T, heads K]; rows may be strided; the gradient of y, overwritten with that of x
  Tensor gq_weight, gk_weight;  // [K] F32, BF16 or F64, optional; accumulated into
};
void head_norm_backward(Stream& stream, Arena& scratch, const HeadNormBackward& op);

}  // namespace octet::kernels
