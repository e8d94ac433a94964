#pragma once

#include "octet/kernels/rope/rope.h"

namespace octet::kernels::cpu {

void rope(const Rope& op);

}  // namespace octet::kernels::cpu
