// Element-wise odds and ends.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y = x in y's dtype (F64, F32, BF16, F16 in and out), rounded to nearest even. Rows may be strided.
struct Cast {
  Tensor x;
  Tensor y;  // of x's shape; overwritten
};
void cast(Queue& queue, const Cast& op);

// y = y + x (F64, F32, BF16 each): summed in FP32, in FP64 where either is F64, and then rounded to y's dtype, to nearest even.
// Rows may be strided; x of a row stride of 0 is one row, added to every row of y.
struct Add {
  Tensor x;
  Tensor y;  // of x's shape; accumulated into
};
void add(Queue& queue, const Add& op);

}  // namespace octet::kernels
