// The CPU backend of dropout.h. dropout.cpp checks the shapes and counts the work.
#pragma once

#include "octet/kernels/dropout/dropout.h"

namespace octet::kernels::cpu {

void dropout(const Dropout& op);

}  // namespace octet::kernels::cpu
