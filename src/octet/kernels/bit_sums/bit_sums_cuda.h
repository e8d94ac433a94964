// The CUDA backend of bit_sums.h. bit_sums.cpp checks the operands, counts the work and sets the sums to zero.
#pragma once

#include "octet/kernels/bit_sums/bit_sums.h"

namespace octet::kernels::cuda {

// Adds to `sums`, which are zero.
void bit_sums(Stream& stream, const BitSums& op);

}  // namespace octet::kernels::cuda
