// The CUDA backend of fill.h. Checked and counted in fill.cpp.
#pragma once

#include "octet/kernels/fill/fill.h"

namespace octet::kernels::cuda {

void fill_normal(Queue& queue, const FillNormal& op);

}  // namespace octet::kernels::cuda
