// The CPU backend of router.h.
#pragma once

#include "octet/kernels/router/router.h"

namespace octet::kernels::cpu {

// `lse` is [T] F64.
void router_forward(const RouterForward& op, double* lse);
void router_losses(const RouterLosses& op);
void update_router_bias(const RouterBiasUpdate& op);
void router_backward(const RouterBackward& op);

}  // namespace octet::kernels::cpu
