#pragma once

#include "octet/kernels/layernorm/layernorm.h"

namespace octet::kernels::cpu {

void layernorm_forward(const LayerNormForward& op);
// The partial sums of gweight and gbias are [column_partials(T), D] F32 (F64 for F64).
void layernorm_backward(const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials);

}  // namespace octet::kernels::cpu
