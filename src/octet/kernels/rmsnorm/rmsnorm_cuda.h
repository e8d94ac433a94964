// The CUDA backend of rmsnorm.h. Shapes have been checked, work counted and scratch given out in rmsnorm.cpp.
#pragma once

#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::kernels::cuda {

// With op.codes those and rstd alone, else y. `amaxes` of allocate_amaxes, where codes are wanted.
void rmsnorm_forward(Queue& queue, const RmsNormForward& op, float* amaxes);
// `partials` is [column_partials(T), D] F32.
void rmsnorm_backward(Queue& queue, const RmsNormBackward& op, const Tensor& partials, float* amaxes);

}  // namespace octet::kernels::cuda
