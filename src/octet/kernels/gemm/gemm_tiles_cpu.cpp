#include <algorithm>
#include <bit>

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm_tiles.h"

namespace octet::kernels::cpu {
namespace {

bool is_fp8(const GemmOperand& x) { return size_of(x.values.dtype) == 1; }

// Positive, normal and a power of two.
bool is_power_of_2(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x807FFFFFu) == 0 && x >= 0x1p-126f && x <= 0x1p127f; }

bool exact_in_bf16(const GemmOperand& x) {
  if (x.values.dtype == DType::bf16) return true;
  if (!is_fp8(x)) return false;
  if (!is_block(x.tile)) return true;  // MX scales are powers of two; those of tensor and row tiles multiply sums
  for (std::int64_t row = 0; row < x.scale_inv.rows(); ++row) {
    const auto* const scales = x.scale_inv.as<float>() + row * x.scale_inv.row_stride;
    if (!std::all_of(scales, scales + x.scale_inv.cols(), is_power_of_2)) return false;
  }
  return true;
}

// The part as the tiles read it. Scales within K, which a block may share among several rows and steps, are written out in
// `memory`.
TileOperand tile_operand(const GemmOperand& x, const Part& part, float* memory) {
  const bool k_last = x.layout == GemmOperand::Layout::k_last;
  const std::int64_t first = (k_last ? part.row : part.k) * x.values.row_stride + (k_last ? part.k : part.row);
  TileOperand result{.data = x.values.as_bytes() + first * static_cast<std::int64_t>(size_of(x.values.dtype)),
                     .stride = x.values.row_stride};
  switch (x.values.dtype) {
    case DType::f8_e4m3:
      result.kind = k_last ? TileOperand::Kind::e4m3 : TileOperand::Kind::e4m3_k_first;
      break;
    case DType::f8_e5m2:
      result.kind = k_last ? TileOperand::Kind::e5m2 : TileOperand::Kind::e5m2_k_first;
      break;
    default:
      result.kind = k_last ? TileOperand::Kind::bf16_k_last : TileOperand::Kind::bf16_k_first;
      return result;
  }
  const std::int64_t width = tile_width(x.tile);
  if (width == 0) return result;
  result.scales = memory;
  for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
    for (std::int64_t k = part.k; k < part.k + part.length; k += kTileK) *memory++ = scale_of(x, row, k / width);
  }
  return result;
}

}  // namespace

float scale_of(const GemmOperand& x, std::int64_t row, std::int64_t block) {
  const std::int64_t stride = x.scale_inv.row_stride;
  const auto* const scales = static_cast<const float*>(x.scale_inv.data);
  switch (x.tile) {
    case ScaleTile::block_1x128:
      return scales[block * stride + row];
    case ScaleTile::block_128x128:
      return scales[row / 128 * stride + block];
    default:
      return decode_e8m0(x.scale_inv.as_bytes()[row * stride + block]);
  }
}

bool exact_in_tiles(const Gemm& op) { return exact_in_bf16(op.a) && exact_in_bf16(op.b); }

bool PackedParts::holds(const Gemm& op, const Part& a, const float* memory) const {
  return op_ == &op && memory_ == memory && part_ == a;
}

void PackedParts::pack(const TileKernel& kernel, const Gemm& op, const Part& a, const Part& b, float* memory) {
  auto* const a_tiles = reinterpret_cast<std::uint16_t*>(memory);
  std::uint16_t* const b_tiles = a_tiles + packed_elements(a.rows, a.length);
  auto* const scales = reinterpret_cast<float*>(b_tiles + packed_elements(b.rows, b.length));
  a_ = TilePanel::packed(a_tiles, a.length);
  b_ = TilePanel::packed(b_tiles, b.length);
  if (!holds(op, a, memory)) kernel.pack(tile_operand(op.a, a, scales), TileSide::a, a.rows, a.length, a_tiles, a_.next);
  kernel.pack(tile_operand(op.b, b, scales), TileSide::b, b.rows, b.length, b_tiles, b_.next);
  op_ = &op;
  memory_ = memory;
  part_ = a;
}

}  // namespace octet::kernels::cpu
