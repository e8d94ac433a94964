#include <algorithm>
#include <array>
#include <bit>
#include <limits>

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

namespace {

// Measured on a Xeon with AMX, whose second-level cache has room for half a million FP32: the longest part of K that is packed at
// a time. Parts of 256 and of 1,024 are slower.
constexpr std::int64_t kPart = 512;
// The most FP32 that a thread uses. If K has one part, its sums are few, but D itself passes through the cache.
constexpr std::int64_t kMost = 450'000, kMostOfOnePart = 260'000;
// To pack a row takes as long as to multiply it with this many others, and to begin a task as long as to multiply this many pairs
// of rows.
constexpr std::int64_t kPacking = 128, kBeginning = 1024;

TileCut tile_cut(const Gemm& op, std::int64_t rows, std::int64_t columns) {
  // Rows of A that stay in the first-level cache. An operand with K first is packed along its lines of memory instead.
  const std::int64_t a_rows = op.a.layout == GemmOperand::Layout::k_last ? 2 * kTileRows : 16 * kTileRows;
  return {.rows = rows, .columns = columns, .length = kPart, .a_rows = std::min(a_rows, rows)};
}

// The largest of equal parts that are at most about `wanted` long.
std::int64_t equal_part(std::int64_t size, std::int64_t wanted) {
  return std::min(size, round_up(ceil_div(size, ceil_div(size, wanted)), 2 * kTileRows));
}

}  // namespace

std::int64_t TileCut::packed_elements_of(std::int64_t count, std::int64_t k) const {
  const std::int64_t packed = std::min(k, length);
  return whole_tiles(count, kTileRows) * (whole_tiles(packed, kTileK) / 2 + ceil_div(packed, kTileK));
}

TileCut cut_for_tiles(const Gemm& op, const GemmPlan& plan, std::int64_t lanes) {
  constexpr std::array<std::int64_t, 11> kSizes = {32, 64, 96, 128, 192, 256, 384, 512, 704, 1024, 2048};
  TileCut best = tile_cut(op, plan.tile_m, plan.tile_n);
  const bool one_part = best.packs_k_at_once(plan.k);
  const std::int64_t most = std::min(one_part ? kMostOfOnePart : kMost, plan.lane_elements());
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t rows : kSizes) {
    for (const std::int64_t columns : kSizes) {
      const TileCut cut = tile_cut(op, equal_part(plan.m, rows), equal_part(plan.n, columns));
      if (cut.elements(plan.k) > most) continue;
      const std::int64_t down = ceil_div(plan.m, cut.rows), tasks = ceil_div(down * ceil_div(plan.n, cut.columns), lanes);
      // If K has one part, a thread packs B once for all its tiles below each other.
      const std::int64_t packs_of_b = one_part ? ceil_div(tasks, down) : tasks;
      // At the end, threads wait for the last task.
      const std::int64_t task = cut.rows * (cut.columns + kPacking) + kBeginning, wait = lanes > 1 ? task / 4 : 0;
      const std::int64_t cost = tasks * task + packs_of_b * cut.columns * kPacking + wait;
      if (cost >= least) continue;
      least = cost;
      best = cut;
    }
  }
  return best;
}

std::int64_t tile_elements(const Gemm& op) { return std::min(kMost, tile_cut(op, op.a.rows(), op.b.rows()).elements(op.a.k())); }

const TilePanel& PackedPart::pack(const TileKernel& kernel, TileSide side, const GemmOperand& x, const Part& part,
                                  float* memory) {
  if (operand_ == &x && memory_ == memory && part_ == part) return panel_;
  auto* const tiles = reinterpret_cast<std::uint16_t*>(memory);
  auto* const scales = reinterpret_cast<float*>(tiles + packed_elements(part.rows, part.length));
  panel_ = TilePanel::packed(tiles, part.length);
  kernel.pack(tile_operand(x, part, scales), side, part.rows, part.length, tiles, panel_.next);
  operand_ = &x;
  memory_ = memory;
  part_ = part;
  return panel_;
}

}  // namespace octet::kernels::cpu
