#include "octet/nn/attention.h"

#include <algorithm>
#include <cmath>

#include "octet/nn/sequence.h"

namespace octet::nn {
namespace {

std::optional<Norm> make_norm(const Attention::Options& options, const char* name, std::int64_t heads,
                              parallel::ParameterStore& store) {
  if (options.qk_norm == QkNorm::none) return std::nullopt;
  const bool whole = options.qk_norm == QkNorm::whole;
  require(!whole || store.place().size == 1, options.name, ".", name, " on a tensor axis of ", store.place().size);
  return Norm(NormKind::rms, concat(options.name, ".", name), (whole ? heads : 1) * options.head_dim, options.norm_epsilon,
              store);
}

}  // namespace

Attention::Attention(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : options_(options),
      heads_(options.heads / store.place().size),
      kv_heads_(std::max<std::int64_t>(1, options.kv_heads / store.place().size)),
      columns_({.heads = heads_, .kv_heads = kv_heads_, .head_dim = options.head_dim}),
      qkv_({.parts = within(options.name, options.qkv),
            .out = (options.heads + 2 * options.kv_heads) * options.head_dim,
            .in = options.dim,
            .cut = {.along = parallel::Cut::rows,
                    .part_rows = {options.heads * options.head_dim, options.kv_heads * options.head_dim,
                                  options.kv_heads * options.head_dim},
                    .least_rows = options.head_dim},
            .init_std = options.init_std,
            .bias = options.qkv_bias},
           recipe, store, scales),
      q_norm_(make_norm(options, "q_norm", options.heads, store)),
      k_norm_(make_norm(options, "k_norm", options.kv_heads, store)),
      output_({.parts = {options.name + "." + options.output},
               .out = options.dim,
               .in = options.heads * options.head_dim,
               .cut = {.along = parallel::Cut::columns},
               .init_std = options.output_init_std,
               .bias = options.output_bias},
              recipe, store, scales),
      precision_(output_.is_fp8() ? recipe.attention : AttentionPrecision::bf16),
      q_(quantizer("q", Role::activation, columns_.q, recipe, scales)),
      k_(quantizer("k", Role::activation, columns_.kv, recipe, scales)),
      v_(quantizer("v", Role::activation, columns_.kv, recipe, scales)),
      go_(quantizer("o", Role::gradient, columns_.q, recipe, scales)),
      ds_(quantizer("s", Role::gradient, 0, recipe, scales)),
      gq_(quantizer("q", Role::gradient, columns_.q, recipe, scales)),
      gk_(quantizer("k", Role::gradient, columns_.kv, recipe, scales)),
      gv_(quantizer("v", Role::gradient, columns_.kv, recipe, scales)) {}

kernels::AttentionShape Attention::shape(const Scope& scope) const {
  return {.batch = scope.batch,
          .heads = heads_,
          .kv_heads = kv_heads_,
          .head_dim = options_.head_dim,
          .scale = options_.scale != 0 ? options_.scale : 1.0 / std::sqrt(static_cast<double>(options_.head_dim)),
          .window = options_.window,
          .deterministic = scope.deterministic};
}

kernels::Rope Attention::rope(const Scope& scope, const Tensor& x) const {
  return {.x = x,
          .rotated = columns_.q + columns_.kv,
          .head_dim = options_.head_dim,
          .rotary_dim = options_.rotary_dim,
          .table = scope.rope_table,
          .positions = scope.positions};
}

void Attention::forward_qkv(const Scope& scope, const Operand& h, AttentionSaved& saved) const {
  const std::int64_t tokens = qkv_.x().tokens(scope, h);
  const bool fp8 = is_fp8(scope);
  const ArenaScope temporaries(scope.scratch);
  saved.qkv = allocate(fp8 ? scope.scratch : scope.stash.get(), scope.dtype, {tokens, columns_.all()});
  if (!fp8) saved.o = allocate(scope.stash, scope.dtype, {tokens, columns_.q});
  saved.lse = allocate(scope.stash, statistics_dtype(scope.dtype), {heads_, tokens});
  saved.qkv_in = linear_forward(scope, qkv_, h, forward_reads(scope), {}, saved.qkv);
  norm_forward(scope, saved);
  if (options_.rotary) kernels::rope(scope.stream, scope.scratch, rope(scope, saved.qkv));
  if (casts_operands()) cast_operands(scope, saved);
}

void Attention::forward_output(const Scope& scope, const Tensor& residual, const Tensor& y, const AttentionSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  // In FP8 attention itself has recorded the amax of O.
  linear_forward(is_fp8(scope) ? without_record(scope) : scope, output_, output_input(scope, saved), Reads::fprop, residual, y);
}

void Attention::backward_output(const Scope& scope, const Operand& gy, AttentionBackward& work) const {
  const std::int64_t tokens = output_.g().tokens(scope, gy);
  work.go = allocate(scope.scratch, scope.dtype, {tokens, columns_.q});
  work.gy = linear_dgrad(scope, output_, gy, work.go);
}

void Attention::backward_output_wgrad(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  if (!output_.x().is_kept()) return;
  const ArenaScope temporaries(scope.scratch);
  const Operand o = output_.complete_input(rebuild_scope(scope), output_input(scope, saved), Reads::wgrad);
  output_.wgrad(scope, work.gy, o);
}

void Attention::backward_qkv(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work, const Tensor& gh) const {
  if (work.key_gradients) {
    take_key_gradients(scope, work);
    scope.scratch.release_to(work.key_gradients_mark);
  }
  const Operand g = rope_writes_gradient() ? qkv_.g().gradient(scope, work.gqkv) : Operand{.values = work.gqkv};
  if (options_.rotary) {
    kernels::Rope back = rope(scope, work.gqkv);
    back.direction = kernels::Rope::Direction::backward;
    back.codes = g.epilogue;
    kernels::rope(scope.stream, scope.scratch, back);
  }
  norm_backward(scope, saved, work.gqkv);
  linear_backward(scope, qkv_, g, saved.qkv_in, gh);
}

}  // namespace octet::nn
