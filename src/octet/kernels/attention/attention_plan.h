// How the CPU divides attention into blocks, and its scratch. The plan depends only on shapes, dtypes and the number of threads,
// so the meta device allocates the same memory. The number of threads changes how many tasks run at once, but never the blocks.
#pragma once

#include <cstdint>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

struct AttentionPlan {
  std::int64_t batch, heads, kv_heads, head_dim;
  std::int64_t sq, sk;  // tokens of a sequence in q; in k and v
  std::int64_t window;  // largest number of keys that a query sees; 0: no limit
  Visible visible;
  std::int64_t q_block, k_block;  // S is computed in tiles [q_block, k_block]
  bool converts;                  // the storage type is not the type of arithmetic (BF16, E4M3)
  // Backward: the query heads of a key/value head are divided into
  // `parts`. Each has its own gK and gV, which are summed at the end.
  std::int64_t parts = 1;

  std::int64_t offset() const { return visible == Visible::all ? sk : sk - sq; }  // query i sees keys up to i + offset
  std::int64_t q_blocks() const;
  std::int64_t row_length() const;  // k_block, rounded up to whole vectors and tiles
  // Sums of BF16 products have room for whole tiles of kernels/tiles, also on processors without tiles, so that all plans are
  // alike.
  std::int64_t q_rows() const;       // of q_block
  std::int64_t sums_stride() const;  // of head_dim
  std::int64_t kv_sums() const;      // elements of gK or gV of a key/value head: [sk, head_dim]
  std::int64_t heads_per_part() const { return heads / kv_heads / parts; }
  std::int64_t forward_tasks() const { return batch * heads * q_blocks(); }
  std::int64_t backward_tasks() const { return batch * kv_heads * parts; }
  // Numbers of elements of type Real<dtype>.
  std::int64_t forward_lane() const;
  std::int64_t backward_lane() const;
  std::int64_t backward_partials() const;  // [batch, kv_heads, parts, 2, kv_sums]; 0 if there is one part
  // BF16 elements of the keys or values of one key/value head when they are packed for tiles.
  std::int64_t packed_head() const;
  static constexpr std::int64_t kForwardPacked = 2, kBackwardPacked = 3;  // packed tensors

 private:
  std::int64_t tile_elements(std::int64_t panels) const;  // of a lane that uses tiles, without gK and gV
};

// `lane` has room for `lanes` times forward_lane() or backward_lane() elements, `packed` for packed_head() of each key/value head
// of each packed tensor.
struct AttentionScratch {
  void* lane = nullptr;
  std::int64_t lanes = 1;
  void *partials = nullptr, *packed = nullptr;
};

namespace cpu {
// The factors of the products in attention's backward pass. In FP8 they contain the scales of the codes. In other types dS is the
// gradient of the scaled scores, and the factors of gQ and gK contain the scale.
template <class R>
struct GradientFactors {
  R scores;                    // of Q Kᵀ
  R gradients = 1, delta = 1;  // of gO Vᵀ, and of rowsum(gO O)
  R gq, gk, gv = 1;            // of dS K, dSᵀ Q and Pᵀ gO
  // Only for FP8.
  float ds = 1, ds_scale = 1;  // of P (dP - rowsum(gO O)), which makes it dS; and of dS when it is cast
  float* ds_amax = nullptr;    // optional: becomes max(*ds_amax, |dS|); NaN propagates
};
// `op` has E4M3 codes as q, k, v and o, codes of one of the formats as go, and BF16 gq, gk and gv.
void attention_backward_fp8(const AttentionBackward& op, const GradientFactors<float>& factors, const AttentionPlan& plan,
                            const AttentionScratch& scratch);
// `op` has E4M3 codes as q, k and v, and a BF16 o.
void attention_forward_fp8(const AttentionForward& op, double score_factor, double value_factor, const AttentionPlan& plan,
                           const AttentionScratch& scratch);
void attention_forward(const AttentionForward& op, const AttentionPlan& plan, const AttentionScratch& scratch);
void attention_backward(const AttentionBackward& op, const AttentionPlan& plan, const AttentionScratch& scratch);
}  // namespace cpu

}  // namespace octet::kernels
