// Attention in FP8 (docs/numerics.md, "Attention in FP8"). Q, K and V are cast behind the rotation, each with its own delayed
// scale. O leaves attention as codes of the output linear's X. Forward keeps these codes instead of BF16 values, and backward
// reads them. So its scores are those of forward, and with forward's log-sum-exp the probabilities of a query add up to 1.
// Backward multiplies their values in BF16. With AttentionPrecision::fp8 it multiplies the codes themselves, and codes of
// gradients.
//
// Calibration attends in BF16, because O can be cast only with a scale that is known before. It casts Q, K, V and the gradients
// only to record their amaxes.
#include "octet/kernels/fill/fill.h"
#include "octet/nn/attention.h"

namespace octet::nn {
namespace {

Quantized allocate_codes(Arena& arena, Fp8Format format, std::int64_t rows, std::int64_t cols) {
  Quantized q;
  q.format = format;
  q.rowwise = allocate(arena, dtype_of(format), {rows, cols});
  q.rowwise_scale_inv = allocate(arena, DType::f32, {1});
  return q;
}

Tensor decode(const Scope& scope, const Quantized& q) {
  const Tensor values = allocate(scope.scratch, scope.dtype, q.rowwise.shape);
  kernels::decode_codes(scope.stream, {.q = q, .y = values});
  return values;
}

Quantized cast(const Scope& scope, const Quantizer& quantizer, const Tensor& values) {
  return quantizer.complete(scope, {.values = values}, Reads::fprop).codes;
}

}  // namespace

// The scales are called model.layers.0.self_attn.q.x, .k.x and .v.x for the operands, and .q.g, .k.g, .v.g, .o.g and .s.g for the
// gradients of Q, K, V, O and the scores.
Quantizer Attention::quantizer(const char* operand, Role role, std::int64_t cols, const Recipe& recipe,
                               recipes::ScaleState& scales) const {
  const std::string name = concat(options_.name, ".", operand);
  const bool fp8 = role == Role::gradient ? casts_gradients() : casts_operands();
  Quantizer::Options options{.linears = {name}, .role = role, .cols = cols, .fp8 = fp8, .wgrad = WgradReads::nothing};
  if (fp8) options.slots = {scales.add(name, role)};
  return {options, recipe, scales};
}

Tensor Attention::statistics(const Scope& scope, const AttentionSaved& saved) const {
  return saved.lse.reshape({shape(scope).batch * heads_, saved.lse.cols() / shape(scope).batch});
}

void Attention::cast_operands(const Scope& scope, AttentionSaved& saved) const {
  const std::int64_t rows = saved.qkv.rows(), k = q_cols(), v = k + kv_cols();
  const ArenaScope temporaries(scope.scratch);
  Arena& kept = is_fp8(scope) ? scope.stash.get() : scope.scratch;
  const auto keep = [&](const Quantizer& quantizer, std::int64_t begin) {
    const std::int64_t cols = quantizer.options().cols;
    const Operand x{.values = saved.qkv.slice_cols(begin, begin + cols),
                    .codes = allocate_codes(kept, Fp8Format::e4m3, rows, cols)};
    return quantizer.complete(scope, x, Reads::fprop).codes;
  };
  saved.q_codes = keep(q_, 0);
  saved.k_codes = keep(k_, k);
  saved.v_codes = keep(v_, v);
  if (!is_fp8(scope)) return;
  saved.qkv = {};
  saved.o_codes = allocate_codes(scope.stash, Fp8Format::e4m3, rows, q_cols());
}

void Attention::attend_on_codes(const Scope& scope, const AttentionSaved& saved) const {
  kernels::attention_forward_fp8(scope.stream, scope.scratch,
                                 {.shape = shape(scope),
                                  .q = saved.q_codes,
                                  .k = saved.k_codes,
                                  .v = saved.v_codes,
                                  .first_keys = scope.first_keys,
                                  .documents = scope.documents,
                                  .o = output_.x().cast_to(scope, saved.o_codes),
                                  .lse = statistics(scope, saved)});
}

void Attention::backward_from_codes(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  if (casts_gradients()) return backward_in_fp8(scope, saved, work);
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t k = q_cols(), v = k + kv_cols();
  kernels::attention_backward(scope.stream, scope.scratch,
                              {.shape = shape(scope),
                               .q = decode(scope, saved.q_codes),
                               .k = decode(scope, saved.k_codes),
                               .v = decode(scope, saved.v_codes),
                               .first_keys = scope.first_keys,
                               .documents = scope.documents,
                               .o = decode(scope, saved.o_codes),
                               .lse = statistics(scope, saved),
                               .go = work.go,
                               .gq = work.gqkv.slice_cols(0, k),
                               .gk = work.gqkv.slice_cols(k, v),
                               .gv = work.gqkv.slice_cols(v, v + kv_cols())});
}

void Attention::backward_in_fp8(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const Quantized go = cast(scope, go_, work.go);
  Quantized scores;
  scores.format = go.format;
  const auto codes = [&](const Quantizer& gradient) {
    return allocate_codes(scope.scratch, go.format, work.go.rows(), gradient.options().cols);
  };
  const Quantized gq = codes(gq_), gk = codes(gk_), gv = codes(gv_);
  kernels::attention_backward_fp8(scope.stream, scope.scratch,
                                  {.shape = shape(scope),
                                   .q = saved.q_codes,
                                   .k = saved.k_codes,
                                   .v = saved.v_codes,
                                   .o = saved.o_codes,
                                   .go = go,
                                   .first_keys = scope.first_keys,
                                   .documents = scope.documents,
                                   .lse = statistics(scope, saved),
                                   .ds = ds_.cast_to(scope, scores),
                                   .gq = gq_.cast_to(scope, gq),
                                   .gk = gk_.cast_to(scope, gk),
                                   .gv = gv_.cast_to(scope, gv)});
  std::int64_t begin = 0;
  for (const Quantized* gradient : {&gq, &gk, &gv}) {
    const std::int64_t end = begin + gradient->rowwise.cols();
    kernels::decode_codes(scope.stream, {.q = *gradient, .y = work.gqkv.slice_cols(begin, end)});
    begin = end;
  }
}

// Records the amaxes of all that backward_in_fp8() casts. Only attention itself sees dS, whose amax does not depend on its scale.
// So codes of what it reads, each cast by its own amax, pass through it with scale 1. Its results overwrite codes that nobody
// reads.
void Attention::calibrate_gradients(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t k = q_cols(), v = k + kv_cols(), end = v + kv_cols();
  const Quantized gq = cast(scope, gq_, work.gqkv.slice_cols(0, k)), gk = cast(scope, gk_, work.gqkv.slice_cols(k, v)),
                  gv = cast(scope, gv_, work.gqkv.slice_cols(v, end)), go = cast(scope, go_, work.go);

  const Tensor one = allocate(scope.scratch, DType::f32, {1});
  kernels::fill_normal(scope.stream, {.x = one, .mean = 1, .deviation = 0});
  const auto with_scale_1 = [&](kernels::QuantizeEpilogue to) {
    to.spec.source = ScaleSource::history;
    to.scale = one.as<float>();
    return to;
  };
  const Scope silent = without_record(scope);
  Quantized scores;
  scores.format = go.format;
  kernels::attention_backward_fp8(scope.stream, scope.scratch,
                                  {.shape = shape(scope),
                                   .q = cast(silent, q_, saved.qkv.slice_cols(0, k)),
                                   .k = cast(silent, k_, saved.qkv.slice_cols(k, v)),
                                   .v = cast(silent, v_, saved.qkv.slice_cols(v, end)),
                                   .o = cast(silent, q_, saved.o),
                                   .go = go,
                                   .first_keys = scope.first_keys,
                                   .documents = scope.documents,
                                   .lse = statistics(scope, saved),
                                   .ds = with_scale_1(ds_.cast_to(scope, scores)),
                                   .gq = with_scale_1(gq_.cast_to(silent, gq)),
                                   .gk = with_scale_1(gk_.cast_to(silent, gk)),
                                   .gv = with_scale_1(gv_.cast_to(silent, gv))});
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
