#include "octet/nn/attention.h"

#include <algorithm>
#include <cmath>

#include "octet/kernels/rope/rope.h"
#include "octet/nn/norm.h"

namespace octet::nn {
Attention::Attention(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : options_(options),
      heads_(options.heads / store.place().size),
      kv_heads_(std::max<std::int64_t>(1, options.kv_heads / store.place().size)),
      qkv_({.parts = within(options.name, options.qkv),
            .out = (options.heads + 2 * options.kv_heads) * options.head_dim,
            .in = options.dim,
            .cut = {.along = parallel::Cut::rows,
                    .part_rows = {options.heads * options.head_dim, options.kv_heads * options.head_dim,
                                  options.kv_heads * options.head_dim},
                    .least_rows = options.head_dim},
            .init_std = options.init_std,
            .bias = options.bias},
           recipe, store, scales),
      output_({.parts = {options.name + "." + options.output},
               .out = options.dim,
               .in = options.heads * options.head_dim,
               .cut = {.along = parallel::Cut::columns},
               .init_std = options.output_init_std,
               .bias = options.bias},
              recipe, store, scales) {}

kernels::AttentionShape Attention::shape(const Scope& scope) const {
  return {.batch = scope.batch,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = options_.head_dim,
          .scale = 1.0 / std::sqrt(static_cast<double>(options_.head_dim)),
          .window = options_.window,
          .deterministic = scope.deterministic};
}

LinearOperand Attention::input(const Scope& scope, std::int64_t tokens, const AttentionSaved& saved) const {
  return qkv_.input(scope, tokens, scope.checkpointing == Checkpointing::selective ? nullptr : &saved.qkv_in);
}

void Attention::forward(const Scope& scope, const Tensor& rope_table, const LinearOperand& h, const Tensor& residual,
                        const Tensor& y, AttentionSaved& saved, const std::function<void()>& between) const {
  const std::int64_t tokens = scope.tensor.size() * residual.rows(), q = q_cols(), kv = kv_cols();
  const bool keep_input = scope.checkpointing != Checkpointing::selective;
  saved.qkv = allocate(scope.stash, scope.dtype, {tokens, q + 2 * kv});
  saved.o = allocate(scope.stash, scope.dtype, {tokens, q});
  saved.lse = allocate(scope.stash, statistics_dtype(scope.dtype), {heads_, tokens});
  qkv_.forward(scope, h, {}, saved.qkv, keep_input ? &saved.qkv_in : nullptr);
  kernels::rope(scope.stream, scope.scratch,
                {.x = saved.qkv,
                 .rotated = q + kv,
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = rope_table,
                 .positions = scope.positions});
  context_attention_forward(scope, {.shape = shape(scope), .qkv = saved.qkv, .o = saved.o, .lse = saved.lse}, between);
  if (scope.observer) scope.observer->attention(scope, options_.name, saved.lse);
  if (y) output_.forward(scope, saved.o, residual, y, nullptr);
}

void Attention::rebuild(const Scope& scope, const LinearOperand& h, AttentionSaved& saved) const {
  qkv_.rebuild(scope, h, saved.qkv_in);
}

WholeKv Attention::gather_ahead(const Scope& scope, const AttentionSaved& saved) const {
  return nn::gather_ahead(scope, shape(scope), saved.qkv);
}

void Attention::backward(const Scope& scope, const Tensor& rope_table, const LinearOperand& gy, const AttentionSaved& saved,
                         const WholeKv& kv, const Tensor& gh, const std::function<void()>& between) const {
  const std::int64_t tokens = scope.tensor.size() * gh.rows(), q = q_cols();
  const ArenaScope temporaries(scope.scratch);
  const LinearOperand gy_of_all = output_.complete_gradient(scope, gy);
  const auto output_wgrad = [&] {
    const ArenaScope of_wgrad(scope.scratch);
    LinearSaved o;
    output_.rebuild(scope, scope.scratch, saved.o, o);
    output_.wgrad(scope, gy_of_all, o);
  };
  const Tensor go = allocate(scope.scratch, scope.dtype, {tokens, q});
  output_.dgrad(scope, gy_of_all, go);
  if (scope.context.size() == 1) output_wgrad();
  between();
  const Tensor gqkv = allocate(scope.scratch, scope.dtype, {tokens, q + 2 * kv_cols()});
  context_attention_backward(
      scope, {.shape = shape(scope), .qkv = saved.qkv, .o = saved.o, .lse = saved.lse, .go = go, .gqkv = gqkv, .kv = kv},
      output_wgrad);
  const LinearOperand g = qkv_.gradient(scope, gqkv);
  kernels::rope(scope.stream, scope.scratch,
                {.x = gqkv,
                 .rotated = q + kv_cols(),
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = rope_table,
                 .positions = scope.positions,
                 .direction = kernels::Rope::Direction::backward,
                 .codes = g.codes});
  qkv_.backward(scope, g, saved.qkv_in, gh);
}

}  // namespace octet::nn
