// The CUDA backend of norm.h. norm.cpp checks the operands and counts the work.
#pragma once

#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cuda {

// `partials` has room for one sum for each chunk, in device memory.
void sum_squares(Stream& stream, const SumSquares& op, double* partials);

}  // namespace octet::kernels::cuda
