// The CUDA backend of rope.h: with op.codes those alone (x is only read), else x is rotated in place. Checked in rope.cpp;
// `amaxes` are those of allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/rope/rope.h"

namespace octet::kernels::cuda {

void rope(Queue& queue, const Rope& op, float* amaxes);

}  // namespace octet::kernels::cuda
