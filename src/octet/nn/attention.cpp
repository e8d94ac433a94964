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

void Attention::forward_qkv(const Scope& scope, const Operand& h, std::int64_t tokens, AttentionSaved& saved) const {
  const std::int64_t all = scope.tensor.size() * tokens, q = q_cols(), kv = kv_cols();
  const Reads reads = forward_reads(scope);
  saved.qkv = allocate(scope.stash, scope.dtype, {all, q + 2 * kv});
  saved.o = allocate(scope.stash, scope.dtype, {all, q});
  saved.lse = allocate(scope.stash, statistics_dtype(scope.dtype), {heads_, all});
  const ArenaScope temporaries(scope.scratch);
  const Operand x = qkv_.x().complete(scope, h, scope.stash, reads);
  qkv_.fprop(scope, x, {}, saved.qkv);
  qkv_.add_bias(scope, saved.qkv);
  if (reads != Reads::fprop) saved.qkv_in = for_wgrad(qkv_.x(), x);
  kernels::rope(scope.stream, scope.scratch,
                {.x = saved.qkv,
                 .rotated = q + kv,
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = scope.rope_table,
                 .positions = scope.positions});
}

void Attention::forward_output(const Scope& scope, const Tensor& residual, const Tensor& y, const AttentionSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  const Operand o = output_.x().complete(scope, {.values = saved.o}, scope.scratch, Reads::fprop);
  const PartialSum sum(scope, residual, y);
  output_.fprop(scope, o, sum.c, sum.d);
  sum.finish(scope);
  output_.add_bias(scope, y);
}

void Attention::backward_output(const Scope& scope, const Operand& gy, AttentionBackward& work) const {
  output_.add_bias_gradient(scope, gy.values);
  work.gy = output_.g().complete_gradient(scope, gy);
  work.go = allocate(scope.scratch, scope.dtype, {tokens_of(work.gy), q_cols()});
  output_.dgrad(scope, work.gy, work.go);
}

void Attention::backward_output_wgrad(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const Operand o = output_.x().complete(without_record(scope), {.values = saved.o}, scope.scratch, Reads::wgrad);
  output_.wgrad(scope, work.gy, o);
}

void Attention::backward_qkv(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work, const Tensor& gh) const {
  if (work.key_gradients.ready) {
    take_key_gradients(scope, work);
    scope.scratch.release_to(work.before_key_gradients);
  }
  Operand g = qkv_.g().gradient(scope, work.gqkv);
  kernels::rope(scope.stream, scope.scratch,
                {.x = work.gqkv,
                 .rotated = q_cols() + kv_cols(),
                 .head_dim = options_.head_dim,
                 .rotary_dim = options_.rotary_dim,
                 .table = scope.rope_table,
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
