// Products by the processor's tiles (kernels/tiles): which operands they multiply, and the sums of one tile of D.
#pragma once

#include <cstdint>

#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

// A part of an operand: rows [row, row + rows) and [k, k + length) of K.
struct Part {
  std::int64_t row, rows, k, length;
};

// The scale of a row in a block of K of an FP8 operand whose tile is a block or MX. A block is tile_width(x.tile) elements of K.
float scale_of(const GemmOperand& x, std::int64_t row, std::int64_t block);

// Whether all operands are exact in BF16: BF16 itself, and codes whose scales within K, if there are any, are powers of two.
bool exact_in_tiles(const Gemm& op);

// sums[i * stride + j] = the sum over all of K of A's row a_row + i times B's row b_row + j, without the scales of tensor and row
// tiles. The stride is `columns`, rounded up to whole tiles; the sums have room for whole tiles. `memory` is aligned to 64 bytes
// and has room for 384 FP32 for each row of A and B, rounded up to whole tiles, or for K rounded up to whole tiles if that is
// less.
void sum_with_tiles(const TileKernel& kernel, const Gemm& op, std::int64_t a_row, std::int64_t rows, std::int64_t b_row,
                    std::int64_t columns, float* sums, float* memory);

}  // namespace octet::kernels::cpu
