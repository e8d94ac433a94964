// MX operands in the forms that cuBLASLt accepts.
#pragma once

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels::cuda {

// Elements between rows of a decoded operand, a multiple of 16.
constexpr std::int64_t decoded_mx_stride(std::int64_t k) { return round_up(k, 16); }
// Decodes every element to code * 2^e in BF16. The result is exact unless it is outside BF16's range, where it is rounded like a
// float. The columns from K to the stride become zero or NaN. For GPUs without MX tensor cores.
void decode_mx(Queue& queue, const GemmOperand& x, BFloat16* out);

// Rearranges scales into tiles of 128 rows and 4 blocks, 512 bytes each, as
// MX tensor cores read them. Rows and blocks are padded with zero bytes.
constexpr std::size_t tiled_mx_scale_bytes(std::int64_t rows, std::int64_t k) {
  return static_cast<std::size_t>(round_up(rows, 128) * round_up(ceil_div(k, 32), 4));
}
void tile_mx_scales(Queue& queue, const GemmOperand& x, std::uint8_t* out);

}  // namespace octet::kernels::cuda
