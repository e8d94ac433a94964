// The norms of Q and K.
#include "octet/nn/attention.h"

namespace octet::nn {

kernels::HeadNorm Attention::head_norm() const {
  return {.head_dim = options_.head_dim,
          .q_heads = heads_,
          .k_heads = kv_heads_,
          .q_weight = q_norm_->weight().value,
          .k_weight = k_norm_->weight().value};
}

void Attention::norm_forward(const Scope& scope, AttentionSaved& saved) const {
  if (options_.qk_norm == QkNorm::none) return;
  const std::int64_t tokens = saved.qkv.rows(), cols = columns_.q + columns_.kv;
  const Tensor qk = saved.qkv.slice_cols(0, cols);
  saved.unnormed = allocate(scope.stash, scope.dtype, {tokens, cols});
  saved.head_rstd = allocate(scope.stash, statistics_dtype(scope.dtype), {tokens, heads_ + kv_heads_});
  if (scope.watch) {
    scope.watch->norm(scope, options_.name + ".q_norm", q_norm_->weight().value);
    scope.watch->norm(scope, options_.name + ".k_norm", k_norm_->weight().value);
  }
  kernels::head_norm_forward(
      scope.stream,
      {.norm = head_norm(), .x = qk, .epsilon = options_.norm_epsilon, .before = saved.unnormed, .rstd = saved.head_rstd});
}

void Attention::norm_backward(const Scope& scope, const AttentionSaved& saved, const Tensor& gqkv) const {
  if (options_.qk_norm == QkNorm::none) return;
  const Tensor g = gqkv.slice_cols(0, columns_.q + columns_.kv);
  kernels::head_norm_backward(scope.stream, scope.scratch,
                              {.norm = head_norm(),
                               .before = saved.unnormed,
                               .rstd = saved.head_rstd,
                               .g = g,
                               .gq_weight = q_norm_->weight().grad,
                               .gk_weight = k_norm_->weight().grad});
}

}  // namespace octet::nn
