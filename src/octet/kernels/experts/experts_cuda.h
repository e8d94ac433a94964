// The CUDA backend of experts.h. It supports only BF16 activations.
#pragma once

#include "octet/kernels/experts/experts.h"

namespace octet::kernels::cuda {

void expert_order(Queue& queue, const ExpertOrder& op);
void expert_scatter(Queue& queue, const ExpertScatter& op);
void expert_combine(Queue& queue, const ExpertCombine& op);
void expert_dot(Queue& queue, const ExpertDot& op);

}  // namespace octet::kernels::cuda
