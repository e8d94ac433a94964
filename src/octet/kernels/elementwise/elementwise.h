// Element-wise operations.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y = x converted to y's dtype (F64, F32, BF16, F16), rounded to nearest even. Rows may be strided.
struct Cast {
  Tensor x;
  Tensor y;  // of x's shape; overwritten
};
void cast(Stream& stream, const Cast& op);

// y += x (each F64, F32 or BF16). The sum is computed in FP32, or in F64 if either operand is F64, and rounded to y's dtype to
// nearest even. Rows may be strided. If x has a row stride of 0, its one row is added to every row of y.
struct Add {
  Tensor x;
  Tensor y;  // of x's shape; accumulated into
};
void add(Stream& stream, const Add& op);

}  // namespace octet::kernels
