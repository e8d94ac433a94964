// The norms of Q and K.
#include "octet/kernels/elementwise/elementwise.h"
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
  if (options_.qk_norm == QkNorm::whole) {
    saved.q_statistics = q_norm_->allocate_statistics(scope, scope.stash, tokens);
    saved.k_statistics = k_norm_->allocate_statistics(scope, scope.stash, tokens);
    kernels::cast(scope.stream, {.x = qk, .y = saved.unnormed});
    const auto norm = [&](const Norm& norm, std::int64_t begin, std::int64_t end, const Tensor& statistics) {
      norm.forward(scope, saved.unnormed.slice_cols(begin, end), {.values = qk.slice_cols(begin, end)}, statistics);
    };
    norm(*q_norm_, 0, columns_.q, saved.q_statistics);
    norm(*k_norm_, columns_.q, cols, saved.k_statistics);
    return;
  }
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
  const std::int64_t cols = columns_.q + columns_.kv;
  const Tensor g = gqkv.slice_cols(0, cols);
  if (options_.qk_norm == QkNorm::whole) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor gx = allocate(scope.scratch, g.dtype, g.shape);
    scope.stream.zero(gx.data, gx.bytes());  // the norms add to it
    const auto differentiate = [&](const Norm& norm, std::int64_t begin, std::int64_t end, const Tensor& statistics) {
      norm.backward(scope, g.slice_cols(begin, end), saved.unnormed.slice_cols(begin, end), statistics,
                    {.values = gx.slice_cols(begin, end)});
    };
    differentiate(*q_norm_, 0, columns_.q, saved.q_statistics);
    differentiate(*k_norm_, columns_.q, cols, saved.k_statistics);
    return kernels::cast(scope.stream, {.x = gx, .y = g});
  }
  kernels::head_norm_backward(scope.stream, scope.scratch,
                              {.norm = head_norm(),
                               .before = saved.unnormed,
                               .rstd = saved.head_rstd,
                               .g = g,
                               .gq_weight = q_norm_->weight().grad,
                               .gk_weight = k_norm_->weight().grad});
}

}  // namespace octet::nn
