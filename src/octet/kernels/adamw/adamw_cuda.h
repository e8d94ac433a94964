// The CUDA backend of adamw.h. adamw.cpp checks the operands and counts the work.
#pragma once

#include "octet/kernels/adamw/adamw.h"

namespace octet::kernels::cuda {

void adamw(Stream& stream, const AdamW& op);
void adamw(Stream& stream, const AdamWList& list);
void prepare_step(Stream& stream, const PrepareStep& op);

}  // namespace octet::kernels::cuda
