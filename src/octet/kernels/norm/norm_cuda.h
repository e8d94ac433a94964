// The CUDA backend of norm.h. Checked and counted in norm.cpp.
#pragma once

#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cuda {

// `partials`: one for each cpu::kSumSquaresPiece elements, in device memory.
void sum_squares(Queue& queue, const SumSquares& op, double* partials);

}  // namespace octet::kernels::cuda
