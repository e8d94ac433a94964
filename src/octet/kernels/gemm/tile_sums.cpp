#include "octet/kernels/gemm/tile_sums.h"

#include <algorithm>
#include <bit>

#include "octet/base/math.h"

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
      result.kind = TileOperand::Kind::e4m3;
      break;
    case DType::f8_e5m2:
      result.kind = TileOperand::Kind::e5m2;
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

void sum_with_tiles(const TileKernel& kernel, const Gemm& op, std::int64_t a_row, std::int64_t rows, std::int64_t b_row,
                    std::int64_t columns, float* sums, float* memory) {
  constexpr std::int64_t kChunk =
      512;  // A multiple of the width of every scale; the packed chunks fit into the second-level cache.
  const std::int64_t k = op.a.k(), stride = whole_tiles(columns, kTileRows);
  for (std::int64_t first = 0; first < k; first += kChunk) {
    const std::int64_t length = std::min(kChunk, k - first), steps = ceil_div(length, kTileK);
    float* const a_scales = memory + (packed_bytes(rows, length) + packed_bytes(columns, length)) / 4;
    float* const b_scales = a_scales + rows * steps;
    kernel.multiply({.m = rows,
                     .n = columns,
                     .k = length,
                     .a = tile_operand(op.a, {a_row, rows, first, length}, a_scales),
                     .b = tile_operand(op.b, {b_row, columns, first, length}, b_scales),
                     .accumulate = first > 0,
                     .sums = sums,
                     .sums_stride = stride,
                     .memory = memory});
  }
}

}  // namespace octet::kernels::cpu
