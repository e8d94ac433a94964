// Layer norm (Ba et al., 2016):  y = n * weight + bias,  n = (x - mean) * rstd  with mean = mean(x) and
// rstd = 1 / sqrt(mean((x - mean)^2) + epsilon) for each row. Computed in FP32 (F64 for F64).
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
  Tensor y;  // [T, D] of x's dtype; overwritten; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives y quantised, instead of y
  Tensor mean;                  // [T] F32 (F64 for F64); overwritten
  Tensor rstd;                  // [T] F32 (F64 for F64); overwritten
};
void layernorm_forward(Stream& stream, Arena& scratch, const LayerNormForward& op);

// gx += rstd * (gy * weight - mean(gy * weight) - n * mean(gy * weight * n)),  gweight += sum over rows of gy * n,
// gbias += sum over rows of gy. The order of the sums over rows does not depend on the number of threads.
struct LayerNormBackward {
  Tensor gy;                    // [T, D]
  Tensor x;                     // [T, D]
  Tensor weight;                // [D]
  Tensor mean;                  // [T]
  Tensor rstd;                  // [T]
  Tensor gx;                    // [T, D] of x's dtype; accumulated into (it already has the residual branch's gradient)
  Tensor gweight;               // [D] F32, BF16 or F64, optional; accumulated into
  Tensor gbias;                 // [D] of gweight's dtype, if that is there; accumulated into
  QuantizeEpilogue codes = {};  // optional: receives the new gx quantised, in addition to gx
};
void layernorm_backward(Stream& stream, Arena& scratch, const LayerNormBackward& op);

}  // namespace octet::kernels
