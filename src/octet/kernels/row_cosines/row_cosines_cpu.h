#pragma once

#include "octet/kernels/row_cosines/row_cosines.h"

namespace octet::kernels::cpu {

void row_cosines(const RowCosines& op);

}  // namespace octet::kernels::cpu
