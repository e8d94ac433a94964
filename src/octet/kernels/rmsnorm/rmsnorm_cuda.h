// The CUDA backend of rmsnorm.h. rmsnorm.cpp checks the shapes, counts the work and allocates the scratch.
#pragma once

#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::kernels::cuda {

// Writes rstd, and codes if `op.codes` is set, otherwise `y`. With codes, `amaxes` comes from allocate_amaxes.
void rmsnorm_forward(Stream& stream, const RmsNormForward& op, float* amaxes);
// `partials` is [column_partials(T), D] F32.
void rmsnorm_backward(Stream& stream, const RmsNormBackward& op, const Tensor& partials, float* amaxes);

}  // namespace octet::kernels::cuda
