// The CUDA backend of dropout.h. dropout.cpp checks the shapes and counts the work.
#pragma once

#include "octet/kernels/dropout/dropout.h"

namespace octet::kernels::cuda {

void dropout(Stream& stream, const Dropout& op);

}  // namespace octet::kernels::cuda
