// Sum of squares of a gradient, for the global norm.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// total[0] += sum x^2, in F64 over fixed pieces of x, added in a fixed order: on one device the same bits every time.
struct SumSquares {
  Tensor x;  // any shape, contiguous; F32, BF16 or F64
  double* total = nullptr;  // device
};
void sum_squares(Queue& queue, Arena& scratch, const SumSquares& op);

}  // namespace octet::kernels
