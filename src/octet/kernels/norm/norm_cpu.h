#pragma once

#include "octet/base/math.h"
#include "octet/kernels/norm/norm.h"

namespace octet::kernels::cpu {

// `partials` receives one sum for each piece of kSumSquaresPiece elements of a tensor.
constexpr std::int64_t kSumSquaresPiece = 1 << 15;
inline std::int64_t sum_squares_pieces(const Tensor& x) { return ceil_div(x.elements(), kSumSquaresPiece); }
void sum_squares(const SumSquares& op, double* partials);

}  // namespace octet::kernels::cpu
