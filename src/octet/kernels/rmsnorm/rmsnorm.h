// Root-mean-square norm (Zhang and Sennrich, 2019):  y = x * rstd * weight,  rstd = 1 / sqrt(mean(x^2) + epsilon) for each row.
// Computed in FP32 (F64 for F64).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct RmsNormForward {
  Tensor x;       // [T, D] BF16, F32 or F64
  Tensor weight;  // [D] of x's dtype
  double epsilon = 1e-5;
  Tensor y;  // [T, D] of x's dtype; overwritten; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives y quantised, instead of y
  Tensor rstd;                  // [T] F32 (F64 for F64); overwritten
};
void rmsnorm_forward(Stream& stream, Arena& scratch, const RmsNormForward& op);

// With n = x * rstd:  gx += rstd * (gy * weight - n * mean(gy * weight * n)),  gweight += sum over rows of gy * n.
// The order of the sum over rows does not depend on the number of threads.
struct RmsNormBackward {
  Tensor gy;                    // [T, D]
  Tensor x;                     // [T, D]
  Tensor weight;                // [D]
  Tensor rstd;                  // [T]
  Tensor gx;                    // [T, D] of x's dtype; accumulated into (it already has the residual branch's gradient)
  Tensor gweight;               // [D] F32, BF16 or F64, optional; accumulated into
  QuantizeEpilogue codes = {};  // optional: receives the new gx quantised, in addition to gx
};
void rmsnorm_backward(Stream& stream, Arena& scratch, const RmsNormBackward& op);

}  // namespace octet::kernels
