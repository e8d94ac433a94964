// Attention in BF16 by the processor's tiles (kernels/tiles). It differs from attention_cpu.cpp in one thing: P and dS are
// rounded to BF16 before they are multiplied, as on GPUs. The sums of the softmax are those of P before rounding.
#pragma once

#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels::cpu {

// One block of queries of head h, from query `begin` on. `memory` has room for plan.forward_lane() FP32, aligned to 64 bytes.
void forward_block_with_tiles(const TileKernel& kernel, const AttentionForward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t h, std::int64_t begin, float* memory);

// All blocks of queries of the heads [first_head, first_head + plan.heads_per_part()), which share a key/value head. Overwrites
// gk and gv, plan.kv_sums() FP32 each. `memory` has room for plan.backward_lane() without them.
void backward_part_with_tiles(const TileKernel& kernel, const AttentionBackward& op, const AttentionPlan& plan, std::int64_t b,
                              std::int64_t first_head, float* gk, float* gv, float* memory);

}  // namespace octet::kernels::cpu
