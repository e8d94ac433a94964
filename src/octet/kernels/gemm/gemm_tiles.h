// Products by the processor's tiles (kernels/tiles): which operands can be multiplied, and how parts of them are packed.
#pragma once

#include <cstdint>

#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

// A part of an operand: rows [row, row + rows) and [k, k + length) of K.
struct Part {
  std::int64_t row, rows, k, length;
  bool operator==(const Part&) const = default;
};

// The scale of a row in a block of K of an FP8 operand whose tile is a block or MX. A block is tile_width(x.tile) elements of K.
float scale_of(const GemmOperand& x, std::int64_t row, std::int64_t block);

// Whether all operands are exact in BF16: BF16 itself, and codes whose scales within K, if there are any, are powers of two.
bool exact_in_tiles(const Gemm& op);

// How a product is divided for the processor's tiles. The division does not change the bits of the result.
struct TileCut {
  std::int64_t rows = 0, columns = 0;  // of a part of D that one thread computes
  std::int64_t length = 0;             // of K that is packed at a time
  std::int64_t a_rows = 0;             // of A that are packed at a time

  bool packs_k_at_once(std::int64_t k) const { return k <= length; }
  // The number of FP32 values that hold the sums: those of the part or, if K is packed at once, those of the packed rows of A.
  // Strides of rows of sums are not powers of 2; otherwise the rows of a tile would evict each other from the first-level
  // cache.
  std::int64_t sums_elements(std::int64_t k) const {
    return whole_tiles(packs_k_at_once(k) ? a_rows : rows, kTileRows) * sums_stride();
  }
  std::int64_t sums_stride() const { return whole_tiles(columns, kTileRows) + kTileRows; }
  // The number of FP32 values whose memory holds `count` packed rows.
  std::int64_t packed_elements_of(std::int64_t count, std::int64_t k) const;
  // The number of FP32 values whose memory holds the sums, B and the rows of A.
  std::int64_t elements(std::int64_t k) const {
    return sums_elements(k) + packed_elements_of(columns, k) + packed_elements_of(a_rows, k);
  }
};
// The fastest division for `lanes` threads, each with memory for plan.lane_elements() FP32.
TileCut cut_for_tiles(const Gemm& op, const GemmPlan& plan, std::int64_t lanes);
// The largest number of FP32 values that such a division needs for a thread.
std::int64_t tile_elements(const Gemm& op);

// A part of an operand, packed.
class PackedPart {
 public:
  // Packs the part, unless it is the part that `memory` already holds. `memory` is aligned to 64 bytes and has room for
  // TileCut::packed_elements_of(part.rows).
  const TilePanel& pack(const TileKernel& kernel, TileSide side, const GemmOperand& x, const Part& part, float* memory);

 private:
  const GemmOperand* operand_ = nullptr;
  const float* memory_ = nullptr;
  Part part_{};
  TilePanel panel_;
};

}  // namespace octet::kernels::cpu
