// The CUDA backend of swiglu.h: with op.codes those alone, else the values. Checked and counted in swiglu.cpp; `amaxes` are those
// of allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::kernels::cuda {

void swiglu_forward(Queue& queue, const SwigluForward& op, float* amaxes);
void swiglu_backward(Queue& queue, const SwigluBackward& op, float* amaxes);

}  // namespace octet::kernels::cuda
