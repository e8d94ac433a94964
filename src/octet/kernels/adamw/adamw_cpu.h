#pragma once

#include <span>

#include "octet/kernels/adamw/adamw.h"

namespace octet::kernels::cpu {

// The ops agree in their dtypes and rule, as those of a list do.
void adamw(std::span<const AdamW> ops);
void prepare_step(const PrepareStep& op);

}  // namespace octet::kernels::cpu
