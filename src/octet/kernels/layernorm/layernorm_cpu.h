#pragma once

#include "octet/kernels/layernorm/layernorm.h"

namespace octet::kernels::cpu {

void layernorm_forward(const LayerNormForward& op);
// Partial sums [column_partials(T), D] F32 (F64 for F64), of gweight and of gbias.
void layernorm_backward(const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials);

}  // namespace octet::kernels::cpu
