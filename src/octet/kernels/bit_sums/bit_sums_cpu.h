#pragma once

#include "octet/kernels/bit_sums/bit_sums.h"

namespace octet::kernels::cpu {

// Adds to `sums`, which are zero.
void bit_sums(const BitSums& op);

}  // namespace octet::kernels::cpu
