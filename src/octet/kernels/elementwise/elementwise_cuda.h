// The CUDA backend of elementwise.h.
#pragma once

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::kernels::cuda {

void cast(Queue& queue, const Cast& op);
void add(Queue& queue, const Add& op);

}  // namespace octet::kernels::cuda
