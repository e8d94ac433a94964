// The scratch of a GEMM on CUDA. It follows from the shapes alone, so builds without CUDA plan the same memory.
#pragma once

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels::cuda {

// The size of cuBLASLt's workspace.
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

// The number of FP32 scales between rows of 128x128 blocks that cuBLASLt requires.
constexpr std::int64_t padded_blocks(std::int64_t k) { return round_up(ceil_div(k, 128), 4); }
bool needs_padded_scales(const GemmOperand& x);

// Elements between rows of a decoded MX operand, a multiple of 16.
constexpr std::int64_t decoded_mx_stride(std::int64_t k) { return round_up(k, 16); }
// MX tensor cores read scales in tiles of 128 rows and 4 blocks, 512 bytes each.
constexpr std::size_t tiled_mx_scale_bytes(std::int64_t rows, std::int64_t k) {
  return static_cast<std::size_t>(round_up(rows, 128) * round_up(ceil_div(k, 32), 4));
}

// 128x128 scales if their rows must be padded; for MX the larger of the operand in BF16 and its scales in tiles.
std::size_t operand_scratch_bytes(const GemmOperand& x);
// The workspace and the scratch of both operands.
std::size_t gemm_scratch_bytes(const Gemm& op);

}  // namespace octet::kernels::cuda
