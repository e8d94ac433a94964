#include "octet/nn/linear.h"

#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/recipes/registry.h"

namespace octet::nn {
namespace {

using kernels::GemmOperand;

GemmOperand values(const Tensor& tensor) { return {.values = tensor}; }
GemmOperand transposed_values(const Tensor& tensor) {
  return {.values = tensor, .layout = GemmOperand::Layout::k_first};
}

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
  require(weight_->spec.shape == Shape({out_, in_}), name_, ": weight ", weight_->spec.shape, " shared as [", out_, ", ", in_, "]");
  if (!is_fp8()) return;
  recipes::check_shape(recipe_, name_, out_, in_);
  weight_->spec.quant = recipe_.w;
  weight_->spec.read_as_values = options.shared_weight != nullptr;
  if (recipe_.delayed()) {
    x_slot_ = scales.add(name_, Role::activation);
    w_slot_ = scales.add(name_, Role::weight);
    g_slot_ = scales.add(name_, Role::gradient);
  }
}

void Linear::bind() { weight_->scale_slot = w_slot_ >= 0 ? scales_->slot(w_slot_) : weight_->scale_slot; }

// The transposed part of X or G, whose summed dim is padded (tensor/quantized.h).
void Linear::add_transposed(Arena& arena, const QuantSpec& spec, std::int64_t tokens, std::int64_t cols, Quantized& q) const {
  const std::int64_t padded = padded_k(tokens, spec.tile);
  q.format = spec.format;
  q.tile = spec.tile;
  q.codes_t = allocate(arena, dtype_of(spec.format), {cols, padded});
  q.scale_inv_t = q.scale_inv && spec.tile == ScaleTile::tensor
                      ? q.scale_inv
                      : allocate(arena, scale_dtype(spec.tile), scale_shape(spec.tile, cols, padded));
}

void Linear::quantize(const Scope& scope, Role role, const Tensor& x, const Quantized& out, Record record) const {
  const ScaleSlot slot = scales_->slot(role == Role::activation ? x_slot_ : g_slot_);
  kernels::quantize(scope.queue, scope.scratch,
                    {.x = x,
                     .spec = recipe_.spec(role),
                     .out = out,
                     .scale = slot.scale,
                     .amax = record == Record::amax ? slot.amax : nullptr});
}

void Linear::forward(const Scope& scope, const Tensor& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const {
  if (!is_fp8()) {
    if (saved) saved->x = x;
    kernels::gemm(scope.queue, scope.scratch, {.a = values(x), .b = values(weight_->value), .c = residual, .d = y});
    return;
  }
  Quantized q{.format = recipe_.x.format, .tile = recipe_.x.tile, .codes = {}, .scale_inv = {}, .codes_t = {}, .scale_inv_t = {}};
  // The stash first: what is kept must not lie between things of the scratch that go.
  if (saved && !recipe_.wgrad_bf16) add_transposed(scope.stash, recipe_.x, x.rows(), in_, q);
  const ArenaScope temporaries(scope.scratch);
  q.codes = allocate(scope.scratch, dtype_of(q.format), {x.rows(), in_});
  // One scale per tensor serves both versions, and lives as long as the longer-lived one.
  q.scale_inv = q.codes_t && q.tile == ScaleTile::tensor
                    ? q.scale_inv_t
                    : allocate(scope.scratch, scale_dtype(q.tile), scale_shape(q.tile, x.rows(), in_));
  quantize(scope, Role::activation, x, q, scope.record);
  if (scope.observer) {
    scope.observer->operand(scope, name_, Role::activation, x, q);
    scope.observer->operand(scope, name_, Role::weight, weight_->primary(), weight_->codes);
  }
  const GemmOperand a = kernels::row_operand(q), b = kernels::row_operand(weight_->codes);
  kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = residual, .d = y, .accumulation = recipe_.fprop});
  if (scope.observer && scope.observer->wants_products(name_)) {
    const Tensor alone = allocate(scope.scratch, DType::f32, {x.rows(), out_});
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.fprop});
    scope.observer->product(scope, name_, "y", alone);
  }
  if (saved) {
    if (recipe_.wgrad_bf16) saved->x = x;
    saved->q = q;
    saved->q.codes = saved->q.scale_inv = {};
  }
}

void Linear::rebuild(const Scope& scope, Arena& arena, const Tensor& x, LinearSaved& saved) const {
  if (keeps_input()) {
    saved.x = x;
    return;
  }
  saved.q = {};
  add_transposed(arena, recipe_.x, x.rows(), in_, saved.q);
  quantize(scope, Role::activation, x, saved.q, Record::nothing);
  if (scope.observer && scope.observer->wants_products(name_)) {
    Scope recompute = scope;
    recompute.record = Record::nothing;
    scope.observer->operand(recompute, name_, Role::activation, x, saved.q);
  }
}

void Linear::backward(const Scope& scope, const Tensor& gy, const LinearSaved& saved, const Tensor& gx) const {
  const Tensor& gw = weight_->grad;
  if (!is_fp8()) {
    if (gx) kernels::gemm(scope.queue, scope.scratch, {.a = values(gy), .b = transposed_values(weight_->value), .c = {}, .d = gx});
    kernels::gemm(scope.queue, scope.scratch, {.a = transposed_values(gy), .b = transposed_values(saved.x), .c = gw, .d = gw});
    return;
  }
  const ArenaScope temporaries(scope.scratch);
  Quantized q{.format = recipe_.g.format, .tile = recipe_.g.tile, .codes = {}, .scale_inv = {}, .codes_t = {}, .scale_inv_t = {}};
  q.codes = allocate(scope.scratch, dtype_of(q.format), {gy.rows(), out_});
  q.scale_inv = allocate(scope.scratch, scale_dtype(q.tile), scale_shape(q.tile, gy.rows(), out_));
  if (!recipe_.wgrad_bf16) add_transposed(scope.scratch, recipe_.g, gy.rows(), out_, q);
  quantize(scope, Role::gradient, gy, q, scope.record);
  if (scope.observer) scope.observer->operand(scope, name_, Role::gradient, gy, q);

  const bool watched = scope.observer && scope.observer->wants_products(name_);
  if (gx) {
    const GemmOperand a = kernels::row_operand(q), b = kernels::transposed_operand(weight_->codes);
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = gx, .accumulation = recipe_.dgrad});
    if (watched) {
      const Tensor exact = allocate(scope.scratch, DType::f32, {gy.rows(), in_});
      kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = exact, .accumulation = recipe_.dgrad});
      scope.observer->product(scope, name_, "gx", exact);
    }
  }
  const GemmOperand a = recipe_.wgrad_bf16 ? transposed_values(gy) : kernels::transposed_operand(q);
  const GemmOperand b = recipe_.wgrad_bf16 ? transposed_values(saved.x) : kernels::transposed_operand(saved.q);
  kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = gw, .d = gw, .accumulation = recipe_.wgrad});
  if (watched) {
    const Tensor alone = allocate(scope.scratch, DType::f32, {out_, in_});
    kernels::gemm(scope.queue, scope.scratch, {.a = a, .b = b, .c = {}, .d = alone, .accumulation = recipe_.wgrad});
    scope.observer->product(scope, name_, "gw", alone);
  }
}

}  // namespace octet::nn
