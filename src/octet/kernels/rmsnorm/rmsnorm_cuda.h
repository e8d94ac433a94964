// The CUDA backend of rmsnorm.h. Shapes have been checked, work counted and scratch given out in rmsnorm.cpp.
#pragma once

#include <algorithm>

#include "octet/base/math.h"
#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::kernels::cuda {

// Rows of one partial sum of gweight: so many that three blocks to each of an H100's or H200's multiprocessors make one each.
constexpr std::int64_t rmsnorm_rows_per_partial(std::int64_t rows) { return std::max<std::int64_t>(4, ceil_div(rows, 396)); }
constexpr std::int64_t rmsnorm_partials(std::int64_t rows) {
  return std::max<std::int64_t>(1, ceil_div(rows, rmsnorm_rows_per_partial(rows)));
}

// With op.codes those and rstd alone, else y. `amaxes` of allocate_amaxes, where codes are wanted.
void rmsnorm_forward(Queue& queue, const RmsNormForward& op, float* amaxes);
// `partials` is [rmsnorm_partials(T), D] F32.
void rmsnorm_backward(Queue& queue, const RmsNormBackward& op, const Tensor& partials, float* amaxes);

}  // namespace octet::kernels::cuda
