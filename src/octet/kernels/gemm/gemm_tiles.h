// Products by the processor's tiles (kernels/tiles): which operands they multiply, and parts of those, packed.
#pragma once

#include <cstdint>

#include "octet/kernels/gemm/gemm.h"
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

// Parts of both operands of a product, packed in the memory of one thread.
class PackedParts {
 public:
  // `memory`, aligned to 64 bytes, has room for K / 2 + K / 32 FP32 for each row of both parts. Rows and K are rounded up to
  // whole tiles.
  void pack(const TileKernel& kernel, const Gemm& op, const Part& a, const Part& b, float* memory);
  const TilePanel& a() const { return a_; }
  const TilePanel& b() const { return b_; }

 private:
  // A is not packed again for the next tile of D that needs the same part.
  bool holds(const Gemm& op, const Part& a, const float* memory) const;

  const Gemm* op_ = nullptr;
  const float* memory_ = nullptr;
  Part part_{};  // of A
  TilePanel a_, b_;
};

}  // namespace octet::kernels::cpu
