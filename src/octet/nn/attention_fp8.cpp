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
  return {.format = format,
          .rowwise = allocate(arena, dtype_of(format), {rows, cols}),
          .rowwise_scale_inv = allocate(arena, DType::f32, {1})};
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

// Adds to the arguments of a kernel what all kernels are told.
template <class Op>
Op Attention::with_shape(const Scope& scope, const AttentionSaved& saved, Op op) const {
  op.shape = shape(scope);
  op.first_keys = scope.first_keys;
  op.documents = scope.documents;
  op.lse = saved.lse.reshape({op.shape.batch * heads_, saved.lse.cols() / op.shape.batch});
  return op;
}

void Attention::cast_operands(const Scope& scope, AttentionSaved& saved) const {
  const auto [q, k, v] = columns_.split(saved.qkv);
  const ArenaScope temporaries(scope.scratch);
  Arena& kept = is_fp8(scope) ? scope.stash.get() : scope.scratch;
  const auto keep = [&](const Quantizer& quantizer, const Tensor& values) {
    const Operand x{.values = values, .codes = allocate_codes(kept, Fp8Format::e4m3, values.rows(), values.cols())};
    return quantizer.complete(scope, x, Reads::fprop).codes;
  };
  saved.q_codes = keep(q_, q);
  saved.k_codes = keep(k_, k);
  saved.v_codes = keep(v_, v);
  if (!is_fp8(scope)) return;
  saved.qkv = {};
  saved.o_codes = allocate_codes(scope.stash, Fp8Format::e4m3, q.rows(), q.cols());
}

void Attention::attend_on_codes(const Scope& scope, const AttentionSaved& saved) const {
  const kernels::AttentionForwardFp8 op{
      .q = saved.q_codes, .k = saved.k_codes, .v = saved.v_codes, .o = output_.x().cast_to(scope, saved.o_codes)};
  kernels::attention_forward_fp8(scope.stream, scope.scratch, with_shape(scope, saved, op));
}

void Attention::backward_from_codes(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  if (casts_gradients()) return backward_in_fp8(scope, saved, work);
  const ArenaScope temporaries(scope.scratch);
  const auto [gq, gk, gv] = columns_.split(work.gqkv);
  const kernels::AttentionBackward op{.q = decode(scope, saved.q_codes),
                                      .k = decode(scope, saved.k_codes),
                                      .v = decode(scope, saved.v_codes),
                                      .o = decode(scope, saved.o_codes),
                                      .go = work.go,
                                      .gq = gq,
                                      .gk = gk,
                                      .gv = gv};
  kernels::attention_backward(scope.stream, scope.scratch, with_shape(scope, saved, op));
}

void Attention::backward_in_fp8(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const Quantized go = cast(scope, go_, work.go);
  const auto codes = [&](const Quantizer& gradient) {
    return allocate_codes(scope.scratch, go.format, work.go.rows(), gradient.options().cols);
  };
  const std::array<Quantized, 3> g = {codes(gq_), codes(gk_), codes(gv_)};
  const kernels::AttentionBackwardFp8 op{.q = saved.q_codes,
                                         .k = saved.k_codes,
                                         .v = saved.v_codes,
                                         .o = saved.o_codes,
                                         .go = go,
                                         .ds = ds_.cast_to(scope, {.format = go.format}),
                                         .gq = gq_.cast_to(scope, g[0]),
                                         .gk = gk_.cast_to(scope, g[1]),
                                         .gv = gv_.cast_to(scope, g[2])};
  kernels::attention_backward_fp8(scope.stream, scope.scratch, with_shape(scope, saved, op));
  const std::array<Tensor, 3> values = columns_.split(work.gqkv);
  for (std::size_t i = 0; i < g.size(); ++i) kernels::decode_codes(scope.stream, {.q = g[i], .y = values[i]});
}

// Records the amaxes of all that backward_in_fp8() casts. dS exists only inside the kernel, and its amax does not depend on its
// scale. So calibration runs the kernel once: inputs cast by their own amaxes, outputs with scale 1. The outputs are discarded.
void Attention::calibrate_gradients(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const {
  const ArenaScope temporaries(scope.scratch);
  const auto [q, k, v] = columns_.split(saved.qkv);
  const std::array<Tensor, 3> g = columns_.split(work.gqkv);
  const Quantized gq = cast(scope, gq_, g[0]), gk = cast(scope, gk_, g[1]), gv = cast(scope, gv_, g[2]),
                  go = cast(scope, go_, work.go);

  const Tensor one = allocate(scope.scratch, DType::f32, {1});
  kernels::fill_normal(scope.stream, {.x = one, .mean = 1, .deviation = 0});
  const auto with_scale_1 = [&](kernels::QuantizeEpilogue to) {
    to.spec.source = ScaleSource::history;
    to.scale = one.as<float>();
    return to;
  };
  const Scope silent = without_record(scope);
  const kernels::AttentionBackwardFp8 op{.q = cast(silent, q_, q),
                                         .k = cast(silent, k_, k),
                                         .v = cast(silent, v_, v),
                                         .o = cast(silent, q_, saved.o),
                                         .go = go,
                                         .ds = with_scale_1(ds_.cast_to(scope, {.format = go.format})),
                                         .gq = with_scale_1(gq_.cast_to(silent, gq)),
                                         .gk = with_scale_1(gk_.cast_to(silent, gk)),
                                         .gv = with_scale_1(gv_.cast_to(silent, gv))};
  kernels::attention_backward_fp8(scope.stream, scope.scratch, with_shape(scope, saved, op));
}

// A watch, an adapter and a wgrad in BF16 read values. Casting these again gives the same codes: BF16 has four bits more than
// E4M3.
Operand Attention::output_input(const Scope& scope, const AttentionSaved& saved) const {
  if (!is_fp8(scope)) return {.values = saved.o};
  const Quantizer& x = output_.x();
  const bool reads_values = scope.watch || x.options().reads_values || x.keeps_values();
  if (reads_values) return {.values = decode(scope, saved.o_codes)};
  return {.codes = {.rowwise = saved.o_codes.rowwise}};
}

}  // namespace octet::nn
