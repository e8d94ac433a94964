#pragma once

#include "octet/kernels/fill/fill.h"

namespace octet::kernels::cpu {
void fill_normal(const FillNormal& op);
void zero(const Zero& op);
}  // namespace octet::kernels::cpu
