// Attention in FP8 (docs/numerics.md, "Attention in FP8"). Q, K and V are cast behind the rotation, each with its own delayed
// scale. O leaves attention as codes of the output linear's X. Forward keeps these codes instead of BF16 values, and backward
// decodes them. So its scores are those of forward, and with forward's log-sum-exp the probabilities of a query add up to 1.
//
// Calibration attends in BF16, because O can be cast only with a scale that is known before. It casts Q, K and V for their amaxes
// alone.
#include "octet/nn/attention.h"

namespace octet::nn {
namespace {

Quantized allocate_codes(Arena& arena, std::int64_t rows, std::int64_t cols) {
  Quantized q;
  q.rowwise = allocate(arena, DType::f8_e4m3, {rows, cols});
  q.rowwise_scale_inv = allocate(arena, DType::f32, {1});
  return q;
}

Tensor decode(const Scope& scope, const Quantized& q) {
  const Tensor values = allocate(scope.scratch, scope.dtype, q.rowwise.shape);
  kernels::decode_codes(scope.stream, {.q = q, .y = values});
  return values;
}

}  // namespace

// Scales are those of an activation: model.layers.0.self_attn.q.x.
Quantizer Attention::quantizer(const char* operand, std::int64_t cols, const Recipe& recipe, recipes::ScaleState& scales) const {
  const std::string name = concat(options_.name, ".", operand);
  Quantizer::Options options{.linears = {name}, .cols = cols, .fp8 = fp8_, .wgrad = WgradReads::nothing};
  if (fp8_) options.slots = {scales.add(name, Role::activation)};
  return {options, recipe, scales};
}

void Attention::cast_operands(const Scope& scope, AttentionSaved& saved) const {
  const std::int64_t rows = saved.qkv.rows(), k = q_cols(), v = k + kv_cols();
  const ArenaScope temporaries(scope.scratch);
  Arena& kept = is_fp8(scope) ? scope.stash.get() : scope.scratch;
  const auto cast = [&](const Quantizer& quantizer, std::int64_t begin) {
    const std::int64_t cols = quantizer.options().cols;
    const Operand x{.values = saved.qkv.slice_cols(begin, begin + cols), .codes = allocate_codes(kept, rows, cols)};
    return quantizer.complete(scope, x, Reads::fprop).codes;
  };
  saved.q_codes = cast(q_, 0);
  saved.k_codes = cast(k_, k);
  saved.v_codes = cast(v_, v);
  if (!is_fp8(scope)) return;
  saved.qkv = {};
  saved.o_codes = allocate_codes(scope.stash, rows, q_cols());
}

void Attention::attend_on_codes(const Scope& scope, const AttentionSaved& saved) const {
  kernels::attention_forward_fp8(
      scope.stream, scope.scratch,
      {.shape = shape(scope),
       .q = saved.q_codes,
       .k = saved.k_codes,
       .v = saved.v_codes,
       .first_keys = scope.first_keys,
       .documents = scope.documents,
       .o = output_.x().cast_to(scope, saved.o_codes),
       .lse = saved.lse.reshape({shape(scope).batch * heads_, saved.lse.cols() / shape(scope).batch})});
}

void Attention::backward_from_codes(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t k = q_cols(), v = k + kv_cols();
  const Tensor lse = saved.lse.reshape({shape(scope).batch * heads_, saved.lse.cols() / shape(scope).batch});
  kernels::attention_backward(scope.stream, scope.scratch,
                              {.shape = shape(scope),
                               .q = decode(scope, saved.q_codes),
                               .k = decode(scope, saved.k_codes),
                               .v = decode(scope, saved.v_codes),
                               .first_keys = scope.first_keys,
                               .documents = scope.documents,
                               .o = decode(scope, saved.o_codes),
                               .lse = lse,
                               .go = work.go,
                               .gq = work.gqkv.slice_cols(0, k),
                               .gk = work.gqkv.slice_cols(k, v),
                               .gv = work.gqkv.slice_cols(v, v + kv_cols())});
}

// A watch, an adapter and a wgrad in BF16 read values. Casting these again gives the same codes: BF16 has four bits more than
// E4M3.
Operand Attention::output_input(const Scope& scope, const AttentionSaved& saved) const {
  if (!is_fp8(scope)) return {.values = saved.o};
  const Quantizer& x = output_.x();
  const bool reads_values = scope.watch || x.options().reads_values || x.keeps_values();
  if (reads_values) return {.values = decode(scope, saved.o_codes)};
  Operand codes;
  codes.codes.rowwise = saved.o_codes.rowwise;
  return codes;
}

}  // namespace octet::nn
