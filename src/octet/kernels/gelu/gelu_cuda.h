// The CUDA backend of gelu.h: with op.codes those alone, else the values. Checked and counted in gelu.cpp; `amaxes` are those of
// allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/gelu/gelu.h"

namespace octet::kernels::cuda {

void gelu_forward(Queue& queue, const GeluForward& op, float* amaxes);
void gelu_backward(Queue& queue, const GeluBackward& op, float* amaxes);

}  // namespace octet::kernels::cuda
