// The CUDA backend of cross_entropy.h. Checked and counted in cross_entropy.cpp.
#pragma once

#include "octet/kernels/cross_entropy/cross_entropy.h"

namespace octet::kernels::cuda {

void cross_entropy(Queue& queue, const CrossEntropy& op);
void loss_sum(Queue& queue, const LossSum& op);

}  // namespace octet::kernels::cuda
