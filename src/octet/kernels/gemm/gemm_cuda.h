// The CUDA backend of gemm.h: cuBLASLt. Shapes have been checked and scratch given out in gemm.cpp.
#pragma once

#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/gemm/gemm_tuning.h"

namespace octet::kernels::cuda {

// cuBLASLt's.
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

// Scratch of a product: the workspace, 128x128 scales whose rows must be padded and, for MX, both operands as BF16 or
// their scales as MX tensor cores read them, whichever is more.
std::size_t gemm_scratch_bytes(const Gemm& op);

// BF16 and FP8 operands. cuBLASLt wants of FP8 that N, K and every row stride are multiples of 16, of block tiles that M and N
// are multiples of 4, and of scales that they start at a multiple of 16 bytes. Throws Error{internal}, with the shape and the
// mode, for a product that it has no algorithm for.
void gemm(Queue& queue, const Gemm& op, void* scratch);

void tune_gemms(Queue& queue, Arena& scratch, const GemmTuning& tuning);

std::string gemm_library_version();

}  // namespace octet::kernels::cuda
