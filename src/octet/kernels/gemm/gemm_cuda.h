// The CUDA backend of gemm.h, with cuBLASLt. gemm.cpp checks the shapes and allocates the scratch (gemm_scratch.h).
#pragma once

#include "octet/kernels/gemm/gemm_scratch.h"
#include "octet/kernels/gemm/gemm_tuning.h"

namespace octet::kernels::cuda {

// BF16 and FP8 operands. cuBLASLt requires N, K and all row strides of FP8 GEMMs to be multiples of 16, M and N of GEMMs with
// block tiles to be multiples of 4, and scales to begin at multiples of 16 bytes. Throws Error{internal} with the shape and mode
// if cuBLASLt has no algorithm for a GEMM.
void gemm(Stream& stream, const Gemm& op, void* scratch);

void tune_gemms(Stream& stream, Arena& scratch, const GemmTuning& tuning);

std::string gemm_library_version();

}  // namespace octet::kernels::cuda
