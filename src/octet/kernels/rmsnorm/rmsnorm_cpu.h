#pragma once

#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::kernels::cpu {

void rmsnorm_forward(const RmsNormForward& op);
// `partials` is [column_partials(T), D] F32 (F64 for F64).
void rmsnorm_backward(const RmsNormBackward& op, const Tensor& partials);

}  // namespace octet::kernels::cpu
