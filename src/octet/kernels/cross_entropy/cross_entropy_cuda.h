// The CUDA backend of cross_entropy.h. cross_entropy.cpp checks the operands and counts the work.
#pragma once

#include "octet/kernels/cross_entropy/cross_entropy.h"

namespace octet::kernels::cuda {

void cross_entropy(Stream& stream, const CrossEntropy& op);
void softmax_statistics(Stream& stream, const SoftmaxStatistics& op);
void cross_entropy_of_part(Stream& stream, const CrossEntropyOfPart& op);
void loss_sum(Stream& stream, const LossSum& op);

}  // namespace octet::kernels::cuda
