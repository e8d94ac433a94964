#include "octet/nn/linear.h"

#include <utility>

#include "octet/kernels/column_sums/column_sums.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/shard.h"
#include "octet/nn/tokens.h"
#include "octet/recipes/registry.h"

namespace octet::nn {
namespace {

using kernels::GemmOperand;

GemmOperand values(const Tensor& tensor) { return {.values = tensor}; }

}  // namespace

std::vector<std::string> within(const std::string& module, std::vector<std::string> parts) {
  for (std::string& part : parts) part = module + "." + part;
  return parts;
}

Linear::Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : name_(options.parts.front() + (options.parts.size() > 1 ? ".fused" : "")),
      parts_(options.parts),
      recipe_(recipe),
      compute_(recipes::compute_of(recipe, options.parts)),
      along_(options.cut.along),
      weight_(options.shared_weight),
      scales_(&scales) {
  if (!weight_) {
    weight_ = &store.add({.name = name_ + ".weight",
                          .shape = {options.out, options.in},
                          .cut = options.cut,
                          .expert = options.expert,
                          .init_std = options.init_std});
  }
  require(weight_->cut.global() == Shape({options.out, options.in}) && weight_->spec.cut.along == along_, name_, ": weight ",
          weight_->cut.global(), " shared as [", options.out, ", ", options.in, "]");
  out_ = weight_->spec.shape[0];
  in_ = weight_->spec.shape[1];
  weight_->spec.grad_from_product = true;
  if (options.bias) {
    bias_ = &store.add({.name = name_ + ".bias",
                        .shape = {options.out},
                        .cut = along_ == parallel::Cut::rows ? options.cut : parallel::CutRule{},
                        .init_std = 0.0,
                        .decay = false});
  }
  if (!is_fp8()) return;
  recipes::check_shape(recipe_, name_, out_, in_);
  weight_->spec.quant = recipe_.w;
  weight_->spec.keeps_transpose = recipe_.weight_transpose_cache;
  weight_->spec.read_as_values = options.shared_weight != nullptr;
  if (recipe_.delayed()) {
    const recipes::HeldBy held = !options.expert ? recipes::HeldBy::all
                                 : weight_->held ? recipes::HeldBy::some
                                                 : recipes::HeldBy::elsewhere;
    x_slot_ = scales.add(name_, Role::activation, held);
    w_slot_ = scales.add(name_, Role::weight, held);
    g_slot_ = scales.add(name_, Role::gradient, held);
  }
}

void Linear::bind() { weight_->scale_slot = w_slot_ >= 0 ? scales_->slot(w_slot_) : weight_->scale_slot; }

bool Linear::watched(const Scope& scope) const { return is_fp8() && scope.observer && scope.observer->wants_products(name_); }

void Linear::add_bias(const Scope& scope, const Tensor& y) const {
  if (!bias_) return;
  Tensor rows = bias_->value.reshape({1, y.cols()});
  rows.shape[0] = y.rows();
  rows.row_stride = 0;
  kernels::add(scope.stream, {.x = rows, .y = y});
}

void Linear::add_bias_gradient(const Scope& scope, const Tensor& g) const {
  if (bias_) kernels::column_sums(scope.stream, scope.scratch, {.x = g, .y = bias_->grad});
}

QuantSpec Linear::spec(const Scope& scope, Role role) const {
  QuantSpec spec = recipe_.spec(role);
  if (spec.source == ScaleSource::history) {
    if (scope.pass == Pass::calibration) spec.source = ScaleSource::tensor;
  } else if (scope.pass == Pass::evaluation && spec.tile == ScaleTile::tensor && recipe_.token_scales) {
    spec.tile = ScaleTile::row;
  }
  return spec;
}

Quantized Linear::empty(const Scope& scope, Role role) const {
  const QuantSpec how = spec(scope, role);
  return {.format = how.format,
          .tile = how.tile,
          .rowwise = {},
          .rowwise_scale_inv = {},
          .columnwise = {},
          .columnwise_scale_inv = {}};
}

// One scale per tensor serves both versions, and lives as long as the one that was added first.
void Linear::add_rows(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const {
  q.rowwise = allocate(arena, dtype_of(q.format), {tokens, cols});
  q.rowwise_scale_inv = q.columnwise && q.tile == ScaleTile::tensor
                            ? q.columnwise_scale_inv
                            : allocate(arena, scale_dtype(q.tile), scale_shape(q.tile, tokens, cols));
}

// The summed dim is padded (tensor/quantized.h).
void Linear::add_transposed(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const {
  const std::int64_t padded = padded_k(tokens, q.tile);
  q.columnwise = allocate(arena, dtype_of(q.format), {cols, padded});
  q.columnwise_scale_inv = q.rowwise && q.tile == ScaleTile::tensor
                               ? q.rowwise_scale_inv
                               : allocate(arena, scale_dtype(q.tile), scale_shape(q.tile, cols, padded));
}

kernels::QuantizeEpilogue Linear::to(const Scope& scope, Role role, const Quantized& out, Record record) const {
  const ScaleSlot slot = scales_->slot(role == Role::activation ? x_slot_ : g_slot_);
  const QuantSpec how = spec(scope, role);
  return {.spec = how,
          .out = out,
          .scale = how.source == ScaleSource::history ? slot.scale : nullptr,
          .amax = record == Record::amax ? slot.amax : nullptr};
}

// What the producer left to do.
void Linear::quantize(const Scope& scope, Role role, const LinearOperand& operand, Record record) const {
  if (!operand.codes) kernels::quantize(scope.stream, scope.scratch, to(scope, role, operand.q, record).of(operand.values));
}

// The stash first: what is kept must not lie between things of the scratch that go.
Quantized Linear::input_codes(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const {
  Quantized q = empty(scope, Role::activation);
  if (saved && !recipe_.wgrad_bf16) add_transposed(scope.stash, tokens, in_, q);
  add_rows(scope.scratch, tokens, in_, q);
  return q;
}

// An observer wants values, and so does a wgrad in BF16.
bool Linear::gathers_codes(const Scope& scope, Role role) const {
  return is_fp8() && spec(scope, role).tile == ScaleTile::tensor && !recipe_.wgrad_bf16 && !scope.observer;
}
bool Linear::takes_share_of_codes(const Scope& scope, Role role) const {
  return gathers_codes(scope, role) && spec(scope, role).source == ScaleSource::history;
}

Quantized Linear::own_rows(const Scope& scope, const Quantized& whole) const {
  const std::int64_t share = share_of_tokens(scope, whole.rowwise.rows());
  Quantized own = whole;
  own.rowwise = whole.rowwise.slice_rows(scope.tensor.rank() * share, (scope.tensor.rank() + 1) * share);
  own.columnwise = own.columnwise_scale_inv = {};
  return own;
}

// A scale of this very tensor is that of all ranks' shares.
void Linear::quantize_share(const Scope& scope, const kernels::QuantizeEpilogue& to, const Tensor& values) const {
  if (to.spec.source == ScaleSource::history) return kernels::quantize(scope.stream, scope.scratch, to.of(values));
  const ArenaScope temporaries(scope.scratch);
  const Tensor scale = allocate(scope.scratch, DType::f32, {1});
  kernels::amax(scope.stream, scope.scratch, {.x = values, .amax = static_cast<float*>(scale.data)});
  scope.tensor.all_reduce(scope.stream, scope.scratch, {.x = scale, .reduction = comm::Reduction::max});
  kernels::scales_from_amax(
      scope.stream,
      {.amax = scale, .spec = to.spec, .whole = values.shape, .multipliers = scale, .scale_inv = to.out.rowwise_scale_inv});
  kernels::Quantize cast = to.of(values);
  cast.spec.source = ScaleSource::history;
  cast.scale = static_cast<const float*>(scale.data);
  kernels::quantize(scope.stream, scope.scratch, cast);
}

LinearOperand Linear::gather(const Scope& scope, Role role, const LinearOperand& share, const Quantized& whole, Arena& arena,
                             Record record) const {
  if (!gathers_codes(scope, role)) return {.values = gather_tokens(scope, arena, share.values), .q = whole};
  const kernels::QuantizeEpilogue own = to(scope, role, own_rows(scope, whole), record);
  if (!share.codes) quantize_share(scope, own, share.values);
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = own.out.rowwise, .y = whole.rowwise});
  if (whole.columnwise) kernels::transpose_codes(scope.stream, whole);
  return {.values = {}, .q = whole, .codes = own};
}

LinearOperand Linear::input(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const {
  LinearOperand x;
  if (gathers(scope, parallel::Cut::rows)) {
    if (!takes_share_of_codes(scope, Role::activation)) return {.values = allocate(scope.scratch, scope.dtype, {tokens, in_})};
    x.q = input_codes(scope, scope.tensor.size() * tokens, saved);
    x.codes = to(scope, Role::activation, own_rows(scope, x.q), scope.record);
    return x;
  }
  const bool kept = saved && keeps_input();
  if (kept || !is_fp8() || scope.observer) x.values = allocate(kept ? scope.stash : scope.scratch, scope.dtype, {tokens, in_});
  if (is_fp8()) x.q = input_codes(scope, tokens, saved);
  if (!x.values) x.codes = to(scope, Role::activation, x.q, scope.record);
  return x;
}

void Linear::forward(const Scope& scope, const Tensor& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const {
  const ArenaScope temporaries(scope.scratch);
  const bool quantised_here = is_fp8() && !gathers(scope, parallel::Cut::rows);
  forward(scope, {.values = x, .q = quantised_here ? input_codes(scope, x.rows(), saved) : Quantized{}}, residual, y, saved);
}

void Linear::forward(const Scope& scope, const LinearOperand& share, const Tensor& residual, const Tensor& y,
                     LinearSaved* saved) const {
  const ArenaScope temporaries(scope.scratch);
  LinearOperand x = share;
  if (gathers(scope, parallel::Cut::rows)) {
    if (is_fp8() && !x.q.rowwise) x.q = input_codes(scope, scope.tensor.size() * share.values.rows(), saved);
    x = gather(scope, Role::activation, share, x.q, saved && keeps_input() ? scope.stash : scope.scratch, scope.record);
  }
  const PartialSum out = along_ == parallel::Cut::columns ? PartialSum(scope, residual, y) : PartialSum::none(residual, y);
  if (!is_fp8()) {
    if (saved) saved->x = x.values;
    kernels::gemm(scope.stream, scope.scratch, {.a = values(x.values), .b = values(weight_->value), .c = out.c, .d = out.d});
    out.finish(scope);
    return add_bias(scope, y);
  }
  quantize(scope, Role::activation, x, scope.record);
  if (scope.observer) {
    scope.observer->operand(scope, name_, Role::activation, x.values, x.q);
    const bool whole = weight_->primary().shape == weight_->spec.shape;
    if (whole) scope.observer->operand(scope, name_, Role::weight, weight_->primary(), weight_->codes);
  }
  const GemmOperand a = kernels::row_operand(x.q), b = kernels::row_operand(weight_beside(scope, x.q.tile));
  kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = out.c, .d = out.d, .accumulation = recipe_.fprop});
  if (watched(scope)) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor alone = allocate(scope.scratch, DType::f32, out.d.shape);
    kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.fprop});
    scope.observer->product(scope, name_, "y", alone);
  }
  out.finish(scope);
  add_bias(scope, y);
  if (saved) {
    if (recipe_.wgrad_bf16) saved->x = x.values;
    saved->q = x.q;
    saved->q.rowwise = saved->q.rowwise_scale_inv = {};
  }
}

LinearOperand Linear::rebuild_input(const Scope& scope, Arena& arena, std::int64_t tokens) const {
  LinearOperand x;
  if (gathers(scope, parallel::Cut::rows)) {
    if (!takes_share_of_codes(scope, Role::activation)) return {.values = allocate(scope.scratch, scope.dtype, {tokens, in_})};
    x.q = empty(scope, Role::activation);
    add_transposed(scope.scratch, scope.tensor.size() * tokens, in_, x.q);
    add_rows(scope.scratch, scope.tensor.size() * tokens, in_, x.q);
    x.codes = to(scope, Role::activation, own_rows(scope, x.q), Record::nothing);
    return x;
  }
  if (!keeps_input()) {
    x.q = empty(scope, Role::activation);
    add_transposed(arena, tokens, in_, x.q);
  }
  if (keeps_input() || scope.observer) {
    x.values = allocate(arena, scope.dtype, {tokens, in_});
  } else {
    x.codes = to(scope, Role::activation, x.q, Record::nothing);
  }
  return x;
}

void Linear::rebuild(const Scope& scope, Arena& arena, const Tensor& x, LinearSaved& saved) const {
  LinearOperand operand{.values = x};
  if (gathers(scope, parallel::Cut::rows)) return rebuild(scope, operand, saved);
  if (!keeps_input()) {
    operand.q = empty(scope, Role::activation);
    add_transposed(arena, x.rows(), in_, operand.q);
  }
  keep(scope, operand, saved);
}

void Linear::rebuild(const Scope& scope, const LinearOperand& share, LinearSaved& saved) const {
  if (!gathers(scope, parallel::Cut::rows)) return keep(scope, share, saved);
  if (keeps_input()) return keep(scope, {.values = gather_tokens(scope, scope.scratch, share.values)}, saved);
  Quantized q = share.q;
  if (!q.columnwise) {
    q = empty(scope, Role::activation);
    add_transposed(scope.scratch, scope.tensor.size() * share.values.rows(), in_, q);
  }
  const ArenaScope temporaries(scope.scratch);
  if (gathers_codes(scope, Role::activation) && !q.rowwise)
    add_rows(scope.scratch, scope.tensor.size() * share.values.rows(), in_, q);
  keep(scope, gather(scope, Role::activation, share, q, scope.scratch, Record::nothing), saved);
  saved.q.rowwise = saved.q.rowwise_scale_inv = {};
}

void Linear::keep(const Scope& scope, const LinearOperand& x, LinearSaved& saved) const {
  if (keeps_input()) {
    saved.x = x.values;
    return;
  }
  quantize(scope, Role::activation, x, Record::nothing);
  saved.q = x.q;
  if (watched(scope)) {
    Scope recompute = scope;
    recompute.record = Record::nothing;
    scope.observer->operand(recompute, name_, Role::activation, x.values, saved.q);
  }
}

// Products take a scale for each row of both operands or of neither.
Quantized Linear::weight_beside(const Scope& scope, ScaleTile tile) const {
  Quantized w = weight_->codes;
  if (tile != ScaleTile::row || w.tile != ScaleTile::tensor) return w;
  Tensor same = w.rowwise_scale_inv.reshape({1, 1});
  same.shape[0] = out_;
  same.row_stride = 0;
  w.tile = tile;
  w.rowwise_scale_inv = allocate(scope.scratch, w.rowwise_scale_inv.dtype, {out_});
  kernels::cast(scope.stream, {.x = same, .y = w.rowwise_scale_inv.reshape({out_, 1})});
  return w;
}

Quantized Linear::weight_transposed(const Scope& scope) const {
  Quantized q = weight_->codes;
  if (q.columnwise) return q;
  q.columnwise = allocate(scope.scratch, q.rowwise.dtype, {in_, out_});
  if (weight_->column_codes) {  // whose scales are there
    q.rowwise = weight_->column_codes;
  } else {
    q.columnwise_scale_inv = q.tile == ScaleTile::tensor
                                 ? q.rowwise_scale_inv
                                 : allocate(scope.scratch, q.rowwise_scale_inv.dtype, scale_shape(q.tile, in_, out_));
  }
  kernels::transpose_codes(scope.stream, q);
  return q;
}

Quantized Linear::gradient_codes(const Scope& scope, std::int64_t tokens) const {
  Quantized q = empty(scope, Role::gradient);
  add_rows(scope.scratch, tokens, out_, q);
  if (!recipe_.wgrad_bf16) add_transposed(scope.scratch, tokens, out_, q);
  return q;
}

LinearOperand Linear::gradient(const Scope& scope, const Tensor& values, const Quantized* memory) const {
  LinearOperand gy{.values = values};
  if (!is_fp8()) return gy;
  if (gathers(scope, parallel::Cut::columns)) {
    if (!takes_share_of_codes(scope, Role::gradient)) return gy;
    gy.q = memory ? *memory : gradient_codes(scope, scope.tensor.size() * values.rows());
    gy.codes = to(scope, Role::gradient, own_rows(scope, gy.q), scope.record);
    return gy;
  }
  gy.q = memory ? *memory : gradient_codes(scope, values.rows());
  const bool summed = bias_ && along_ != parallel::Cut::columns;
  if (!recipe_.wgrad_bf16 && !scope.observer && !summed) gy.codes = to(scope, Role::gradient, gy.q, scope.record);
  return gy;
}

void Linear::backward(const Scope& scope, const Tensor& gy, const LinearSaved& saved, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  const bool quantised_here = is_fp8() && !gathers(scope, parallel::Cut::columns);
  backward(scope, LinearOperand{.values = gy, .q = quantised_here ? gradient_codes(scope, gy.rows()) : Quantized{}}, saved, gx);
}

void Linear::backward(const Scope& scope, const LinearOperand& gy, const LinearSaved& saved, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  const LinearOperand g = complete_gradient(scope, gy);
  if (gx) dgrad(scope, g, gx);
  wgrad(scope, g, saved);
}

LinearOperand Linear::complete_gradient(const Scope& scope, const LinearOperand& share) const {
  LinearOperand gy = share;
  add_bias_gradient(scope, share.values);
  if (gathers(scope, parallel::Cut::columns)) {
    if (is_fp8() && !gy.q.rowwise) gy.q = gradient_codes(scope, scope.tensor.size() * share.values.rows());
    gy = gather(scope, Role::gradient, share, gy.q, scope.scratch, scope.record);
  }
  if (!is_fp8()) return gy;
  quantize(scope, Role::gradient, gy, scope.record);
  if (scope.observer) scope.observer->operand(scope, name_, Role::gradient, gy.values, gy.q);
  return gy;
}

void Linear::dgrad(const Scope& scope, const LinearOperand& gy, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  const PartialSum sum = along_ == parallel::Cut::rows ? PartialSum(scope, {}, gx) : PartialSum::none({}, gx);
  const GemmOperand a = is_fp8() ? kernels::row_operand(gy.q) : values(gy.values);
  const GemmOperand b =
      is_fp8() ? kernels::transposed_operand(weight_transposed(scope)) : kernels::transposed_values(weight_->value);
  kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = {}, .d = sum.d, .accumulation = recipe_.dgrad});
  sum.finish(scope);
  if (!watched(scope)) return;
  const Tensor exact = allocate(scope.scratch, DType::f32, {gy.q.rowwise.rows(), in_});
  kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = {}, .d = exact, .accumulation = recipe_.dgrad});
  scope.observer->product(scope, name_, "gx", exact);
}

void Linear::wgrad(const Scope& scope, const LinearOperand& gy, const LinearSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor& gw = weight_->grad;
  const Tensor before = std::exchange(weight_->grad_is_stale, false) ? Tensor{} : gw;
  const GemmOperand a = keeps_input() ? kernels::transposed_values(gy.values) : kernels::transposed_operand(gy.q);
  const GemmOperand b = keeps_input() ? kernels::transposed_values(saved.x) : kernels::transposed_operand(saved.q);
  kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = before, .d = gw, .accumulation = recipe_.wgrad});
  if (!watched(scope)) return;
  const Tensor alone = allocate(scope.scratch, DType::f32, {out_, in_});
  kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.wgrad});
  scope.observer->product(scope, name_, "gw", alone);
}

}  // namespace octet::nn
