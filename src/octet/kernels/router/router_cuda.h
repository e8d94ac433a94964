// The CUDA backend of router.h. It supports only F32.
#pragma once

#include "octet/kernels/router/router.h"

namespace octet::kernels::cuda {

// `lse` is [T] F32.
void router_forward(Stream& stream, const RouterForward& op, float* lse);
void router_losses(Stream& stream, const RouterLosses& op);
void update_router_bias(Stream& stream, const RouterBiasUpdate& op);
void router_backward(Stream& stream, const RouterBackward& op);

}  // namespace octet::kernels::cuda
