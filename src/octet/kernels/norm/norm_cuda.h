// The CUDA backend of norm.h. Checked and counted in norm.cpp.
#pragma once

#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cuda {

// `partials`: cpu::sum_squares_pieces of all tensors, in device memory.
void sum_squares(Queue& queue, const SumSquares& op, double* partials);

}  // namespace octet::kernels::cuda
