// MX operands as cuBLASLt takes them.
#pragma once

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels::cuda {

// Elements from row to row of a decoded operand: whole groups of 16.
constexpr std::int64_t decoded_mx_stride(std::int64_t k) { return round_up(k, 16); }
// code * 2^e of every element in BF16, which is exact but beyond BF16's range, where it is rounded as a float is. The columns
// from K to the stride become zero or NaN. For GPUs without MX tensor cores.
void decode_mx(Queue& queue, const GemmOperand& x, BFloat16* out);

// Scales in tiles of 128 rows and 4 blocks, 512 bytes each, as MX tensor cores read them; rows and blocks padded with zero bytes.
constexpr std::size_t tiled_mx_scale_bytes(std::int64_t rows, std::int64_t k) {
  return static_cast<std::size_t>(round_up(rows, 128) * round_up(ceil_div(k, 32), 4));
}
void tile_mx_scales(Queue& queue, const GemmOperand& x, std::uint8_t* out);

}  // namespace octet::kernels::cuda
