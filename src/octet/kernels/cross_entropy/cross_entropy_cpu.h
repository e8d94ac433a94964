#pragma once

#include "octet/kernels/cross_entropy/cross_entropy.h"

namespace octet::kernels::cpu {

void cross_entropy(const CrossEntropy& op);
void softmax_statistics(const SoftmaxStatistics& op);
void cross_entropy_of_part(const CrossEntropyOfPart& op);
void loss_sum(const LossSum& op);

}  // namespace octet::kernels::cpu
