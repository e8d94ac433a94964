// The CUDA backend of elementwise.h.
#pragma once

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::kernels::cuda {

void cast(Stream& stream, const Cast& op);
void add(Stream& stream, const Add& op);
void sum_parts(Stream& stream, const SumParts& op);

}  // namespace octet::kernels::cuda
