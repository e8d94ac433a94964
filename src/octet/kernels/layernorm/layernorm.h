// Layer norm (Ba et al., 2016):  y = n * weight + bias,  n = (x - mean) * rstd  with mean = mean(x) and
// rstd = 1 / sqrt(mean((x - mean)^2) + epsilon) per row. Inside in FP32 (F64 for F64).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct LayerNormForward {
  Tensor x;       // [T, D] BF16, F32 or F64
  Tensor weight;  // [D] of x's dtype
  Tensor bias;    // [D] of x's dtype
  double epsilon = 1e-5;
  Tensor y;               // [T, D] of x's dtype; overwritten; unspecified or absent when `codes` are wanted
  QuantizeTo codes = {};  // of y, in its place
  Tensor mean;            // [T] F32 (F64 for F64); overwritten
  Tensor rstd;            // [T] F32 (F64 for F64); overwritten
};
void layernorm_forward(Queue& queue, Arena& scratch, const LayerNormForward& op);

// gx += rstd * (gy * weight - mean(gy * weight) - n * mean(gy * weight * n)),  gweight += sum over rows of gy * n,
// gbias += sum over rows of gy. The sums over rows are in a fixed order, whatever the number of threads.
struct LayerNormBackward {
  Tensor gy;              // [T, D]
  Tensor x;               // [T, D]
  Tensor weight;          // [D]
  Tensor mean;            // [T]
  Tensor rstd;            // [T]
  Tensor gx;              // [T, D] of x's dtype; added to (the residual branch's gradient is there already)
  Tensor gweight;         // [D] F32, BF16 or F64; added to
  Tensor gbias;           // [D] of gweight's dtype; added to
  QuantizeTo codes = {};  // of the new gx, beside it; optional
};
void layernorm_backward(Queue& queue, Arena& scratch, const LayerNormBackward& op);

}  // namespace octet::kernels
