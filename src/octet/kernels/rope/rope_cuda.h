// The CUDA backend of rope.h. If `op.codes` is set, it writes codes and only reads x; otherwise it rotates x in place. rope.cpp
// checks the operands. `amaxes` comes from allocate_amaxes for op.codes.
#pragma once

#include "octet/kernels/rope/rope.h"

namespace octet::kernels::cuda {

void rope(Stream& stream, const Rope& op, float* amaxes);

}  // namespace octet::kernels::cuda
