#pragma once

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::kernels::cpu {

void swiglu_forward(const SwigluForward& op);
void swiglu_backward(const SwigluBackward& op);

}  // namespace octet::kernels::cpu
