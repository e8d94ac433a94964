// The CUDA backend of experts.h. It supports only BF16 activations.
#pragma once

#include "octet/kernels/experts/experts.h"

namespace octet::kernels::cuda {

void expert_order(Stream& stream, const ExpertOrder& op);
void group_rows(Stream& stream, const GroupRows& op);
void clear_gaps(Stream& stream, const ClearGaps& op);
void expert_scatter(Stream& stream, const ExpertScatter& op);
void expert_amax(Stream& stream, const ExpertAmax& op);
void expert_combine(Stream& stream, const ExpertCombine& op);
void expert_dot(Stream& stream, const ExpertDot& op);

}  // namespace octet::kernels::cuda
