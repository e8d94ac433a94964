#pragma once

#include "octet/base/math.h"
#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::kernels::cpu {

// Rows of one partial sum of gweight: at most 64 partial sums, whatever T.
constexpr std::int64_t rmsnorm_rows_per_partial(std::int64_t rows) {
  return rows <= 1024 ? 16 : round_up(ceil_div(rows, 64), 16);
}

void rmsnorm_forward(const RmsNormForward& op);
// `partials` is [ceil(T / rows_per_partial), D] F32 (F64 for F64).
void rmsnorm_backward(const RmsNormBackward& op, const Tensor& partials);

}  // namespace octet::kernels::cpu
