// GEMMs with BF16 operands and a K of at most 64, such as those of a low-rank adapter: D [T, out] += R [T, r] · B [out, r]ᵀ.
// They are limited by the bandwidth of reading and writing D, of which cuBLASLt's kernels reach 60%.
#pragma once

#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels::cuda {

// Whether low_rank_gemm() can compute this: D is BF16, C is D or absent, K is 16, 32, 48 or 64, and N is a multiple of 8 and at
// least 128. The rows of D begin at multiples of 16 bytes, and pairs along K at multiples of 4.
bool is_low_rank(const Gemm& op);
void low_rank_gemm(Stream& stream, const Gemm& op);

}  // namespace octet::kernels::cuda
