// How a product is cut and what it needs of scratch: from shapes, dtypes and the number of threads alone, so that the meta device
// gives out the same memory. The number of threads changes only how many tiles are under way at once, never a cut.
#pragma once

#include <cstdint>

#include "octet/kernels/gemm/gemm.h"

namespace octet::kernels {

struct GemmPlan {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t tile_m = 0, tile_n = 0;  // of D
  std::int64_t chunk_k = 0;  // so much of K is decoded to FP32 at a time; 0 for operands that are multiplied as they lie

  std::int64_t tiles() const;
  // What a tile needs while it is made, in elements of what is multiplied (FP32 or F64): a chunk of each operand, the sums.
  std::int64_t lane_elements() const { return chunk_k * (tile_m + tile_n) + tile_m * tile_n; }
};
GemmPlan plan_gemm(const Gemm& op);

const char* name_of(ScaleTile tile);  // for messages

namespace cpu {
// `memory` has room for `lanes` times lane_elements().
void gemm(const Gemm& op, const GemmPlan& plan, std::int64_t lanes, void* memory);
}  // namespace cpu

}  // namespace octet::kernels
