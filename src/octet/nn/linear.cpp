#include "octet/nn/linear.h"

#include <utility>

#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/recipes/registry.h"

namespace octet::nn {
namespace {

using kernels::GemmOperand;

GemmOperand values(const Tensor& tensor) { return {.values = tensor}; }
GemmOperand transposed_values(const Tensor& tensor) { return {.values = tensor, .layout = GemmOperand::Layout::k_first}; }

}  // namespace

Linear::Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : name_(options.parts.front() + (options.parts.size() > 1 ? ".fused" : "")),
      parts_(options.parts),
      recipe_(recipe),
      compute_(recipes::compute_of(recipe, options.parts)),
      out_(options.out),
      in_(options.in),
      weight_(options.shared_weight),
      scales_(&scales) {
  if (!weight_) {
    weight_ = &store.add({.name = name_ + ".weight", .shape = {out_, in_}, .init_std = options.init_std});
  }
  require(weight_->spec.shape == Shape({out_, in_}), name_, ": weight ", weight_->spec.shape, " shared as [", out_, ", ", in_,
          "]");
  weight_->spec.grad_from_product = true;
  if (!is_fp8()) return;
  recipes::check_shape(recipe_, name_, out_, in_);
  weight_->spec.quant = recipe_.w;
  weight_->spec.keeps_transpose = recipe_.weight_transpose_cache;
  weight_->spec.read_as_values = options.shared_weight != nullptr;
  if (recipe_.delayed()) {
    x_slot_ = scales.add(name_, Role::activation);
    w_slot_ = scales.add(name_, Role::weight);
    g_slot_ = scales.add(name_, Role::gradient);
  }
}

void Linear::bind() { weight_->scale_slot = w_slot_ >= 0 ? scales_->slot(w_slot_) : weight_->scale_slot; }

Quantized Linear::empty(Role role) const {
  const QuantSpec& spec = recipe_.spec(role);
  return {.format = spec.format, .tile = spec.tile, .codes = {}, .scale_inv = {}, .codes_t = {}, .scale_inv_t = {}};
}

// One scale per tensor serves both versions, and lives as long as the one that was added first.
void Linear::add_rows(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const {
  q.codes = allocate(arena, dtype_of(q.format), {tokens, cols});
  q.scale_inv = q.codes_t && q.tile == ScaleTile::tensor
                    ? q.scale_inv_t
                    : allocate(arena, scale_dtype(q.tile), scale_shape(q.tile, tokens, cols));
}

// The summed dim is padded (tensor/quantized.h).
void Linear::add_transposed(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const {
  const std::int64_t padded = padded_k(tokens, q.tile);
  q.codes_t = allocate(arena, dtype_of(q.format), {cols, padded});
  q.scale_inv_t = q.codes && q.tile == ScaleTile::tensor
                      ? q.scale_inv
                      : allocate(arena, scale_dtype(q.tile), scale_shape(q.tile, cols, padded));
}

kernels::QuantizeTo Linear::to(Role role, const Quantized& out, Record record) const {
  const ScaleSlot slot = scales_->slot(role == Role::activation ? x_slot_ : g_slot_);
  return {.spec = recipe_.spec(role), .out = out, .scale = slot.scale, .amax = record == Record::amax ? slot.amax : nullptr};
}

// What the producer left to do.
void Linear::quantize(const Scope& scope, Role role, const LinearOperand& operand, Record record) const {
  if (!operand.codes) kernels::quantize(scope.queue, scope.scratch, to(role, operand.q, record).of(operand.values));
}

// The stash first: what is kept must not lie between things of the scratch that go.
Quantized Linear::input_codes(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const {
  Quantized q = empty(Role::activation);
  if (saved && !recipe_.wgrad_bf16) add_transposed(scope.stash, tokens, in_, q);
  add_rows(scope.scratch, tokens, in_, q);
  return q;
}

LinearOperand Linear::input(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const {
  LinearOperand x;
  const bool kept = saved && keeps_input();
  if (kept || !is_fp8() || scope.observer) x.values = allocate(kept ? scope.stash : scope.scratch, scope.dtype, {tokens, in_});
  if (is_fp8()) x.q = input_codes(scope, tokens, saved);
  if (!x.values) x.codes = to(Role::activation, x.q, scope.record);
  return x;
}

void Linear::forward(const Scope& scope, const Tensor& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const {
  const ArenaScope temporaries(scope.scratch);
  forward(scope, {.values = x, .q = is_fp8() ? input_codes(scope, x.rows(), saved) : Quantized{}}, residual, y, saved);
}

void Linear::forward(const Scope& scope, const LinearOperand& x, const Tensor& residual, const Tensor& y,
                     LinearSaved* saved) const {
  if (!is_fp8()) {
    if (saved) saved->x = x.values;
    kernels::gemm(scope.queue, scope.scratch, {.a = values(x.values), .b = values(weight_->value), .c = residual, .d = y});
    return;
  }
  quantize(scope, Role::activation, x, scope.record);
  if (scope.observer) {
    scope.observer->operand(scope, name_, Role::activation, x.values, x.q);
    const bool whole = weight_->part_elements == weight_->elements();
    scope.observer->operand(scope, name_, Role::weight, whole ? weight_->primary() : Tensor{}, weight_->codes);
  }
  const GemmOperand a = kernels::row_operand(x.q), b = kernels::row_operand(weight_->codes);
  kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = residual, .d = y, .accumulation = recipe_.fprop});
  if (scope.observer && scope.observer->wants_products(name_)) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor alone = allocate(scope.scratch, DType::f32, y.shape);
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.fprop});
    scope.observer->product(scope, name_, "y", alone);
  }
  if (saved) {
    if (recipe_.wgrad_bf16) saved->x = x.values;
    saved->q = x.q;
    saved->q.codes = saved->q.scale_inv = {};
  }
}

LinearOperand Linear::rebuild_input(const Scope& scope, Arena& arena, std::int64_t tokens) const {
  LinearOperand x;
  if (!keeps_input()) {
    x.q = empty(Role::activation);
    add_transposed(arena, tokens, in_, x.q);
  }
  if (keeps_input() || scope.observer) {
    x.values = allocate(arena, scope.dtype, {tokens, in_});
  } else {
    x.codes = to(Role::activation, x.q, Record::nothing);
  }
  return x;
}

void Linear::rebuild(const Scope& scope, Arena& arena, const Tensor& x, LinearSaved& saved) const {
  LinearOperand operand{.values = x};
  if (!keeps_input()) {
    operand.q = empty(Role::activation);
    add_transposed(arena, x.rows(), in_, operand.q);
  }
  rebuild(scope, operand, saved);
}

void Linear::rebuild(const Scope& scope, const LinearOperand& x, LinearSaved& saved) const {
  if (keeps_input()) {
    saved.x = x.values;
    return;
  }
  quantize(scope, Role::activation, x, Record::nothing);
  saved.q = x.q;
  if (scope.observer && scope.observer->wants_products(name_)) {
    Scope recompute = scope;
    recompute.record = Record::nothing;
    scope.observer->operand(recompute, name_, Role::activation, x.values, saved.q);
  }
}

Quantized Linear::weight_transposed(const Scope& scope) const {
  Quantized q = weight_->codes;
  if (q.codes_t) return q;
  q.codes_t = allocate(scope.scratch, q.codes.dtype, {in_, out_});
  if (weight_->column_codes) {  // whose scales are there
    q.codes = weight_->column_codes;
  } else {
    q.scale_inv_t =
        q.tile == ScaleTile::tensor ? q.scale_inv : allocate(scope.scratch, q.scale_inv.dtype, scale_shape(q.tile, in_, out_));
  }
  kernels::transpose_codes(scope.queue, q);
  return q;
}

Quantized Linear::gradient_codes(const Scope& scope, std::int64_t tokens) const {
  Quantized q = empty(Role::gradient);
  add_rows(scope.scratch, tokens, out_, q);
  if (!recipe_.wgrad_bf16) add_transposed(scope.scratch, tokens, out_, q);
  return q;
}

LinearOperand Linear::gradient(const Scope& scope, const Tensor& values, const Quantized* memory) const {
  LinearOperand gy{.values = values};
  if (!is_fp8()) return gy;
  gy.q = memory ? *memory : gradient_codes(scope, values.rows());
  if (!recipe_.wgrad_bf16 && !scope.observer) gy.codes = to(Role::gradient, gy.q, scope.record);
  return gy;
}

void Linear::backward(const Scope& scope, const Tensor& gy, const LinearSaved& saved, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  backward(scope, LinearOperand{.values = gy, .q = is_fp8() ? gradient_codes(scope, gy.rows()) : Quantized{}}, saved, gx);
}

void Linear::backward(const Scope& scope, const LinearOperand& gy, const LinearSaved& saved, const Tensor& gx) const {
  const Tensor& gw = weight_->grad;
  const Tensor before = std::exchange(weight_->grad_is_stale, false) ? Tensor{} : gw;
  if (!is_fp8()) {
    if (gx) {
      kernels::gemm(scope.queue, scope.scratch,
                    {.a = values(gy.values), .b = transposed_values(weight_->value), .c = {}, .d = gx});
    }
    kernels::gemm(scope.queue, scope.scratch,
                  {.a = transposed_values(gy.values), .b = transposed_values(saved.x), .c = before, .d = gw});
    return;
  }
  const ArenaScope temporaries(scope.scratch);
  const Quantized& q = gy.q;
  quantize(scope, Role::gradient, gy, scope.record);
  if (scope.observer) scope.observer->operand(scope, name_, Role::gradient, gy.values, q);

  const std::int64_t tokens = q.codes.rows();
  const bool watched = scope.observer && scope.observer->wants_products(name_);
  if (gx) {
    const ArenaScope of_dgrad(scope.scratch);
    const GemmOperand a = kernels::row_operand(q), b = kernels::transposed_operand(weight_transposed(scope));
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = gx, .accumulation = recipe_.dgrad});
    if (watched) {
      const Tensor exact = allocate(scope.scratch, DType::f32, {tokens, in_});
      kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = exact, .accumulation = recipe_.dgrad});
      scope.observer->product(scope, name_, "gx", exact);
    }
  }
  const GemmOperand a = recipe_.wgrad_bf16 ? transposed_values(gy.values) : kernels::transposed_operand(q);
  const GemmOperand b = recipe_.wgrad_bf16 ? transposed_values(saved.x) : kernels::transposed_operand(saved.q);
  kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = before, .d = gw, .accumulation = recipe_.wgrad});
  if (watched) {
    const Tensor alone = allocate(scope.scratch, DType::f32, {out_, in_});
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.wgrad});
    scope.observer->product(scope, name_, "gw", alone);
  }
}

}  // namespace octet::nn
