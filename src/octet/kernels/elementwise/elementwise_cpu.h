// The CPU backend of elementwise.h.
#pragma once

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::kernels::cpu {
void cast(const Cast& op);
void add(const Add& op);
void sum_parts(const SumParts& op);
}  // namespace octet::kernels::cpu
