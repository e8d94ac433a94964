// Sums over the rows of a matrix, such as the gradient of a bias.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y += sum over the rows of x, in FP32 (F64 for F64), rounded once.
// The order of the sum does not depend on the number of threads.
struct ColumnSums {
  Tensor x;  // [T, C] BF16, F32 or F64; rows may be strided
  Tensor y;  // [C] F32, BF16 or F64; accumulated into
};
void column_sums(Stream& stream, Arena& scratch, const ColumnSums& op);

}  // namespace octet::kernels
