#include "octet/kernels/gemm/gemm_scratch.h"

#include <algorithm>

namespace octet::kernels::cuda {
namespace {

bool has_scales_of(ScaleTile tile, const GemmOperand& x) { return size_of(x.values.dtype) == 1 && x.tile == tile; }

}  // namespace

bool needs_padded_scales(const GemmOperand& x) {
  return has_scales_of(ScaleTile::block_128x128, x) && ceil_div(x.k(), 128) % 4 != 0;
}

std::size_t operand_scratch_bytes(const GemmOperand& x) {
  const std::int64_t rows = x.rows(), k = x.k();
  std::size_t bytes = 0;
  if (needs_padded_scales(x)) {
    bytes = static_cast<std::size_t>(ceil_div(rows, 128) * padded_blocks(k)) * sizeof(float);
  } else if (has_scales_of(ScaleTile::mx_1x32, x)) {
    bytes = std::max(static_cast<std::size_t>(rows * decoded_mx_stride(k)) * sizeof(BFloat16), tiled_mx_scale_bytes(rows, k));
  }
  return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), Device::kAlignment));
}

std::size_t gemm_scratch_bytes(const Gemm& op) {
  return kWorkspaceBytes + operand_scratch_bytes(op.a) + operand_scratch_bytes(op.b);
}

}  // namespace octet::kernels::cuda
