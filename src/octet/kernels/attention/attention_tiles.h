// Attention in BF16 by the processor's tiles (kernels/tiles). It differs from attention_cpu.cpp in one thing: P and dS are
// rounded to BF16 before they are multiplied, as on GPUs. The sums of the softmax are those of P before rounding.
#pragma once

#include <mutex>
#include <vector>

#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

// The keys or the values of all heads, packed once for all threads as an operand B. The first thread that asks for a head packs
// it; others that ask for it wait.
class PackedHeads {
 public:
  // With bf16_k_last a row of the operand is a key, [sk, head_dim]; with bf16_k_first it is an element of the head,
  // [head_dim, sk]. `memory` has room for plan.packed_head() of each key/value head.
  PackedHeads(const TileKernel& kernel, const AttentionPlan& plan, const Tensor& x, TileOperand::Kind kind,
              std::uint16_t* memory);
  TilePanel operator()(std::int64_t b, std::int64_t g);

 private:
  const TileKernel& kernel_;
  const AttentionPlan& plan_;
  const Tensor& x_;
  TileOperand::Kind kind_;
  std::uint16_t* memory_;
  std::vector<std::once_flag> packed_;
};

// What all tasks of one call share. `packed` is that of AttentionScratch.
struct ForwardTiles {
  const TileKernel& kernel;
  PackedHeads k_rows, v_columns;
  ForwardTiles(const TileKernel& kernel, const AttentionForward& op, const AttentionPlan& plan, void* packed);
};
struct BackwardTiles {
  const TileKernel& kernel;
  PackedHeads k_rows, v_rows, k_columns;
  BackwardTiles(const TileKernel& kernel, const AttentionBackward& op, const AttentionPlan& plan, void* packed);
};

// One block of queries of head h, from query `begin` on. `memory` has room for plan.forward_lane() FP32, aligned to 64 bytes.
void forward_block_with_tiles(ForwardTiles& tiles, const AttentionForward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t h, std::int64_t begin, float* memory);

// All blocks of queries of the heads [first_head, first_head + plan.heads_per_part()), which share a key/value head. Overwrites
// gk and gv, plan.kv_sums() FP32 each. `memory` has room for plan.backward_lane() without them.
void backward_part_with_tiles(BackwardTiles& tiles, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t first_head, float* gk, float* gv, float* memory);

}  // namespace octet::kernels::cpu
