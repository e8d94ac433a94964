#pragma once

#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cpu {

// Partial sums go to `partials`, one for each piece of kSumSquaresPiece elements.
constexpr std::int64_t kSumSquaresPiece = 1 << 15;
void sum_squares(const SumSquares& op, double* partials);

}  // namespace octet::kernels::cpu
