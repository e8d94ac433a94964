// How far rows of a matrix point in the same direction, for health samples.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y[i] = |x_i · x_(F+i)| / (|x_i| |x_(F+i)|), 0 if one of the rows is zero. F32 is rounded to BF16 first, as it is
// before a cast to FP8. Sums are in FP32 on CUDA, and in F64 on the CPU.
struct RowCosines {
  Tensor x;  // [2F, D] BF16 or F32, on the CPU also F64; rows may be strided
  Tensor y;  // [F] F32, overwritten
};
void row_cosines(Stream& stream, const RowCosines& op);

}  // namespace octet::kernels
