#pragma once

#include "octet/kernels/adamw/adamw.h"

namespace octet::kernels::cpu {

void adamw(const AdamW& op);
void prepare_step(const PrepareStep& op);

}  // namespace octet::kernels::cpu
