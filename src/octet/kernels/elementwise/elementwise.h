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

}  // namespace octet::kernels
