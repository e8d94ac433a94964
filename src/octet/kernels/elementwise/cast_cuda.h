// The CUDA backend of elementwise.h.
#pragma once

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::kernels::cuda {

void cast(Queue& queue, const Cast& op);

}  // namespace octet::kernels::cuda
