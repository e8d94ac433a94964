// How the CPU divides a GEMM into tiles, and its scratch. The plan depends only on
// shapes, dtypes and the number of threads, so the meta device allocates the same memory.
// The number of threads changes how many tiles are computed at once, but never the tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels {

struct GemmPlan {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t tile_m = 0, tile_n = 0;  // size of a tile of D
  std::int64_t chunk_k = 0;  // length of K that is decoded to FP32 at a time; 0 for operands that need no decoding
  std::int64_t tile_elements = 0;  // FP32 that a thread of a processor with tiles may need; see gemm_tiles.h

  std::int64_t tiles() const;
  // Scratch for the computation of one tile, in elements of FP32 or F64: the sums, and a chunk of each operand. The same memory
  // serves processors with and without tiles (kernels/tiles).
  std::int64_t lane_elements() const {
    return std::max(sums_elements() + chunk_k * (rounded(tile_m) + rounded(tile_n)), tile_elements);
  }
  std::int64_t sums_elements() const { return rounded(tile_m) * sums_stride(); }
  // Strides of rows of sums are not powers of 2. Otherwise the rows of a tile would evict each other from the first-level
  // cache.
  std::int64_t sums_stride() const { return rounded(tile_n) + 16; }

 private:
  static constexpr std::int64_t rounded(std::int64_t rows) { return round_up(rows, 16); }
};
GemmPlan plan_gemm(const Gemm& op);

const char* name_of(ScaleTile tile);  // for messages

namespace cpu {
// Computes the tiles of all products, which have the same dtypes, in one parallel loop. `memory` has room for `lanes` times the
// largest lane_elements() of the plans, and is aligned to 64 bytes.
void gemms(std::span<const Gemm> ops, std::span<const GemmPlan> plans, std::int64_t lanes, void* memory);
}  // namespace cpu

}  // namespace octet::kernels
