#pragma once

#include "octet/kernels/row_cosines/row_cosines.h"

namespace octet::kernels::cuda {

void row_cosines(Stream& stream, const RowCosines& op);

}  // namespace octet::kernels::cuda
