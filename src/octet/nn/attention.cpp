#include "octet/nn/attention.h"

#include <algorithm>
#include <cmath>

#include "octet/kernels/rope/rope.h"
#include "octet/nn/norm.h"
#include "octet/nn/sequence.h"

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

void Attention::forward(const Scope& scope, const Tensor& rope_table, const Operand& h, const Tensor& residual, const Tensor& y,
                        AttentionSaved& saved, const std::function<void()>& between) const {
  const std::int64_t tokens = scope.tensor.size() * residual.rows(), q = q_cols(), kv = kv_cols();
  const Reads reads = forward_reads(scope);
  saved.qkv = allocate(scope.stash, scope.dtype, {tokens, q + 2 * kv});
  saved.o = allocate(scope.stash, scope.dtype, {tokens, q});
  saved.lse = allocate(scope.stash, statistics_dtype(scope.dtype), {heads_, tokens});
  {
    const ArenaScope temporaries(scope.scratch);
    const Operand x = qkv_.x().complete(scope, h, scope.stash, reads);
    qkv_.fprop(scope, x, {}, saved.qkv);
    qkv_.add_bias(scope, saved.qkv);
    if (reads != Reads::fprop) saved.qkv_in = for_wgrad(qkv_.x(), x);
  }
  kernels::rope(scope.stream, scope.scratch,
                {.x = saved.qkv,
                 .rotated = q + kv,
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = rope_table,
                 .positions = scope.positions});
  context_attention_forward(scope, {.shape = shape(scope), .qkv = saved.qkv, .o = saved.o, .lse = saved.lse}, between);
  if (scope.watch) scope.watch->attention(scope, options_.name, saved.lse);
  if (!y) return;
  const ArenaScope temporaries(scope.scratch);
  const Operand o = output_.x().complete(scope, {.values = saved.o}, scope.scratch, Reads::fprop);
  const PartialSum sum(scope, residual, y);
  output_.fprop(scope, o, sum.c, sum.d);
  sum.finish(scope);
  output_.add_bias(scope, y);
}

WholeKv Attention::gather_ahead(const Scope& scope, const AttentionSaved& saved) const {
  return nn::gather_ahead(scope, shape(scope), saved.qkv);
}

void Attention::backward(const Scope& scope, const Tensor& rope_table, const Operand& gy, const AttentionSaved& saved,
                         const WholeKv& kv, const Tensor& gh, const std::function<void()>& between) const {
  const std::int64_t tokens = scope.tensor.size() * gh.rows(), q = q_cols();
  const ArenaScope temporaries(scope.scratch);
  output_.add_bias_gradient(scope, gy.values);
  const Operand gy_of_all = output_.g().complete_gradient(scope, gy);
  const auto output_wgrad = [&] {
    const ArenaScope of_wgrad(scope.scratch);
    const Operand o = output_.x().complete(without_record(scope), {.values = saved.o}, scope.scratch, Reads::wgrad);
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
  Operand g = qkv_.g().gradient(scope, gqkv);
  kernels::rope(scope.stream, scope.scratch,
                {.x = gqkv,
                 .rotated = q + kv_cols(),
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = rope_table,
                 .positions = scope.positions,
                 .direction = kernels::Rope::Direction::backward,
                 .codes = g.epilogue});
  qkv_.add_bias_gradient(scope, g.values);
  g = qkv_.g().complete_gradient(scope, g);
  {
    const ArenaScope of_sum(scope.scratch);
    const PartialSum sum(scope, {}, gh);
    qkv_.dgrad(scope, g, sum.d);
    sum.finish(scope);
  }
  qkv_.wgrad(scope, g, saved.qkv_in);
}

}  // namespace octet::nn
