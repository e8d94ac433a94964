// The sum of squares of gradients, for their global norm.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/tensor_list.h"

namespace octet::kernels {

// total[0] += sum of x^2 over all tensors of `x`, in F64. Chunks of fixed size are summed first and then added in a fixed order,
// so a device gives the same bits every time. Two launches, however many tensors there are.
struct SumSquares {
  const TensorList& x;      // F32, BF16 or F64
  double* total = nullptr;  // in device memory; accumulated into
};
void sum_squares(Stream& stream, Arena& scratch, const SumSquares& op);

}  // namespace octet::kernels
