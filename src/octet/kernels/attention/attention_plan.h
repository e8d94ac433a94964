// How attention is cut and what it needs of scratch: from shapes, dtypes and the number of threads alone, so that the meta device
// gives out the same memory. The number of threads changes only how many tasks are under way at once, never a cut.
#pragma once

#include <cstdint>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

struct AttentionPlan {
  std::int64_t batch, heads, kv_heads, head_dim;
  std::int64_t sq, sk;            // tokens of a sequence in q, in k and v
  std::int64_t window;            // keys that a query sees at most; 0: all before it
  Visible visible;
  std::int64_t q_block, k_block;  // S is made in tiles [q_block, k_block]
  bool converts;                  // storage is not what arithmetic is done in
  // Backward: the query heads of a key/value head are cut into `parts`, whose gK and gV are summed at the end.
  std::int64_t parts = 1;

  std::int64_t offset() const { return visible == Visible::all ? sk : sk - sq; }  // query i sees keys up to i + offset
  std::int64_t q_blocks() const;
  std::int64_t row_length() const;  // k_block, padded to whole vectors
  std::int64_t heads_per_part() const { return heads / kv_heads / parts; }
  std::int64_t forward_tasks() const { return batch * heads * q_blocks(); }
  std::int64_t backward_tasks() const { return batch * kv_heads * parts; }
  // Elements of Real<dtype>.
  std::int64_t forward_lane() const;
  std::int64_t backward_lane() const;
  std::int64_t backward_partials() const;  // [batch, kv_heads, parts, 2, sk, head_dim], none for one part
};

// `lane` has room for `lanes` times forward_lane() or backward_lane().
struct AttentionScratch {
  void* lane = nullptr;
  std::int64_t lanes = 1;
  void* partials = nullptr;
};

namespace cpu {
void attention_forward(const AttentionForward& op, const AttentionPlan& plan, const AttentionScratch& scratch);
void attention_backward(const AttentionBackward& op, const AttentionPlan& plan, const AttentionScratch& scratch);
}  // namespace cpu

}  // namespace octet::kernels
