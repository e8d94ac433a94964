// The CUDA backend of swiglu.h. Writes codes if `op.codes` is set, otherwise the values. swiglu.cpp checks the operands and
// counts the work. `amaxes` comes from allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::kernels::cuda {

void swiglu_forward(Stream& stream, const SwigluForward& op, float* amaxes);
void swiglu_backward(Stream& stream, const SwigluBackward& op, float* amaxes);

}  // namespace octet::kernels::cuda
