// SwiGLU (Shazeer, 2020):  y = silu(gate) * up,  silu(z) = z / (1 + exp(-z)). Computed in FP32 (F64 for F64). With codes.groups,
// rows of no group keep what they had, with or without codes.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct SwigluForward {
  Tensor gate_up;               // [T, 2F] BF16, F32 or F64: gate in columns [0, F), up in [F, 2F)
  Tensor y;                     // [T, F] overwritten; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives y quantised, instead of y
};
void swiglu_forward(Stream& stream, Arena& scratch, const SwigluForward& op);

struct SwigluBackward {
  Tensor gate_up;   // [T, 2F]
  Tensor gy;        // [T, F]
  Tensor ggate_up;  // [T, 2F] overwritten; may be gate_up; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives ggate_up quantised, instead of ggate_up
};
void swiglu_backward(Stream& stream, Arena& scratch, const SwigluBackward& op);

}  // namespace octet::kernels
