// MX operands in the forms that cuBLASLt accepts.
#pragma once

#include "octet/kernels/gemm/gemm_scratch.h"

namespace octet::kernels::cuda {

// Decodes every element to code * 2^e in BF16. The result is exact unless it is outside BF16's range, where it is rounded like a
// float. The columns from K to the stride become zero or NaN. For GPUs without MX tensor cores.
void decode_mx(Stream& stream, const GemmOperand& x, BFloat16* out);

// Rearranges scales into tiles as MX tensor cores read them (tiled_mx_scale_bytes()). Rows and blocks are padded with zero bytes.
void tile_mx_scales(Stream& stream, const GemmOperand& x, std::uint8_t* out);

}  // namespace octet::kernels::cuda
