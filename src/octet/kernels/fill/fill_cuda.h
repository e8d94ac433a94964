// The CUDA backend of fill.h. fill.cpp checks the operands and counts the work.
#pragma once

#include "octet/kernels/fill/fill.h"

namespace octet::kernels::cuda {

void fill_normal(Stream& stream, const FillNormal& op);
void zero(Stream& stream, const Zero& op);

}  // namespace octet::kernels::cuda
