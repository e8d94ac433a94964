// The CUDA backend of grouped_gemm.h, which checks the shapes and allocates the scratch.
#pragma once

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::kernels::cuda {

// Hopper has a kernel for all groups (grouped_gemm_hopper_cuda.cu), for all tiles but MX. In other cases the host waits for the
// rows of the groups, and cuBLASLt multiplies them one after another in `scratch`, which has grouped_scratch_bytes().
void grouped_gemm(Stream& stream, const GroupedGemmM& op, void* scratch);
void grouped_gemm(Stream& stream, const GroupedGemmK& op, void* scratch);

bool is_hopper(Stream& stream);

// N and K must be multiples of 16 and rows must begin at multiples of 16 bytes, as TMA requires.
void grouped_gemm_on_hopper(Stream& stream, const GroupedGemmM& op);
void grouped_gemm_on_hopper(Stream& stream, const GroupedGemmK& op);

}  // namespace octet::kernels::cuda
