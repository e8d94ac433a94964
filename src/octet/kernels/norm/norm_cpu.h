#pragma once

#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cpu {

// `partials` receives one sum for each chunk.
void sum_squares(const SumSquares& op, double* partials);

}  // namespace octet::kernels::cpu
