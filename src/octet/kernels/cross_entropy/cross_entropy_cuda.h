// The CUDA backend of cross_entropy.h. cross_entropy.cpp checks the operands and counts the work.
#pragma once

#include "octet/kernels/cross_entropy/cross_entropy.h"

namespace octet::kernels::cuda {

void cross_entropy(Queue& queue, const CrossEntropy& op);
void softmax_statistics(Queue& queue, const SoftmaxStatistics& op);
void cross_entropy_of_part(Queue& queue, const CrossEntropyOfPart& op);
void loss_sum(Queue& queue, const LossSum& op);

}  // namespace octet::kernels::cuda
