// The CUDA backend of head_norm.h.
#pragma once

#include "octet/kernels/head_norm/head_norm.h"

namespace octet::kernels::cuda {

void head_norm_forward(Stream& stream, const HeadNormForward& op);

// The partial sums of gq_weight and gk_weight are [column_partials(T), K] F32.
void head_norm_backward(Stream& stream, const HeadNormBackward& op, const Tensor& q_partials, const Tensor& k_partials);

}  // namespace octet::kernels::cuda
