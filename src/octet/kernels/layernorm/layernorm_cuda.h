// The CUDA backend of layernorm.h. layernorm.cpp checks the shapes, counts the work and allocates the scratch.
#pragma once

#include "octet/kernels/layernorm/layernorm.h"

namespace octet::kernels::cuda {

// Writes the statistics, and codes if `op.codes` is set, otherwise `y`. With codes, `amaxes` comes from allocate_amaxes.
void layernorm_forward(Stream& stream, const LayerNormForward& op, float* amaxes);
// The partial sums of gweight and gbias are [column_partials(T), D] F32.
void layernorm_backward(Stream& stream, const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials,
                        float* amaxes);

}  // namespace octet::kernels::cuda
