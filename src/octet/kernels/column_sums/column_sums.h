// Sums over the rows of a matrix: the gradient of a bias.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y += sum over rows of x. Summed in FP32 (F64 of F64), in a fixed order whatever the number of threads, and rounded once.
struct ColumnSums {
  Tensor x;  // [T, C] BF16, F32 or F64; rows may be strided
  Tensor y;  // [C] F32, BF16 or F64; added to
};
void column_sums(Queue& queue, Arena& scratch, const ColumnSums& op);

}  // namespace octet::kernels
