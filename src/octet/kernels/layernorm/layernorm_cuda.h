// The CUDA backend of layernorm.h. Shapes have been checked, work counted and scratch given out in layernorm.cpp.
#pragma once

#include "octet/kernels/layernorm/layernorm.h"

namespace octet::kernels::cuda {

// With op.codes those and the statistics alone, else y. `amaxes` of allocate_amaxes, where codes are wanted.
void layernorm_forward(Queue& queue, const LayerNormForward& op, float* amaxes);
// Partial sums [column_partials(T), D] F32, of gweight and of gbias.
void layernorm_backward(Queue& queue, const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials,
                        float* amaxes);

}  // namespace octet::kernels::cuda
