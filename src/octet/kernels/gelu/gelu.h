// GELU (Hendrycks and Gimpel, 2016), exact or approximated with tanh:
//   exact:  y = x Phi(x),  Phi(x) = (1 + erf(x / sqrt(2))) / 2
//   tanh:   y = x (1 + tanh(u)) / 2,  u = sqrt(2 / pi) (x + 0.044715 x^3)
// Computed in FP32 (F64 for F64).
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

enum class Gelu : std::uint8_t { exact, tanh };

struct GeluForward {
  Gelu kind = Gelu::exact;
  Tensor x;                     // [T, F] BF16, F32 or F64
  Tensor y;                     // [T, F] overwritten; may be x; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives y quantised, instead of y
};
void gelu_forward(Stream& stream, Arena& scratch, const GeluForward& op);

struct GeluBackward {
  Gelu kind = Gelu::exact;
  Tensor x;   // [T, F]
  Tensor gy;  // [T, F]
  Tensor gx;  // [T, F] overwritten; may be x or gy; may be absent with `codes`, and its content is then unspecified
  QuantizeEpilogue codes = {};  // optional: receives gx quantised, instead of gx
};
void gelu_backward(Stream& stream, Arena& scratch, const GeluBackward& op);

}  // namespace octet::kernels
