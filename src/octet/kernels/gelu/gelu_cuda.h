// The CUDA backend of gelu.h. Writes codes if `op.codes` is set, otherwise the values. gelu.cpp checks the operands and counts
// the work. `amaxes` comes from allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/gelu/gelu.h"

namespace octet::kernels::cuda {

void gelu_forward(Stream& stream, const GeluForward& op, float* amaxes);
void gelu_backward(Stream& stream, const GeluBackward& op, float* amaxes);

}  // namespace octet::kernels::cuda
