#pragma once

#include "octet/kernels/gelu/gelu.h"

namespace octet::kernels::cpu {

void gelu_forward(const GeluForward& op);
void gelu_backward(const GeluBackward& op);

}  // namespace octet::kernels::cpu
