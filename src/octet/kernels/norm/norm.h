// Sum of squares of gradients, for the global norm.
#pragma once

#include <span>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// total[0] += sum x^2 over all of `x`, in F64 over fixed pieces of each, added in a fixed order: on one device the same bits every
// time.
struct SumSquares {
  std::span<const Tensor> x;  // any shapes, contiguous; F32, BF16 or F64
  double* total = nullptr;    // device
};
void sum_squares(Queue& queue, Arena& scratch, const SumSquares& op);

}  // namespace octet::kernels
