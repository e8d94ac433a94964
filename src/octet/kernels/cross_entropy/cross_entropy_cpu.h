#pragma once

#include "octet/kernels/cross_entropy/cross_entropy.h"

namespace octet::kernels::cpu {

void cross_entropy(const CrossEntropy& op);
void loss_sum(const LossSum& op);

}  // namespace octet::kernels::cpu
