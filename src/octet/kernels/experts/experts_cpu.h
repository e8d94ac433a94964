// The CPU backend of experts.h.
#pragma once

#include "octet/kernels/experts/experts.h"

namespace octet::kernels::cpu {

void expert_order(const ExpertOrder& op);
void group_rows(const GroupRows& op);
void clear_gaps(const ClearGaps& op);
void expert_scatter(const ExpertScatter& op);
void expert_amax(const ExpertAmax& op);
void expert_combine(const ExpertCombine& op);
void expert_dot(const ExpertDot& op);

}  // namespace octet::kernels::cpu
