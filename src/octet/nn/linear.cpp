#include "octet/nn/linear.h"

#include "octet/kernels/column_sums/column_sums.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/recipes/registry.h"

namespace octet::nn {
namespace {

using kernels::Gemm;

parallel::Parameter& make_weight(const std::string& name, const Linear::Options& o, parallel::ParameterStore& store) {
  parallel::Parameter* weight = o.shared_weight;
  if (!weight) {
    weight =
        &store.add({.name = name + ".weight", .shape = {o.out, o.in}, .cut = o.cut, .expert = o.expert, .init_std = o.init_std});
  }
  require(weight->cut.global() == Shape({o.out, o.in}) && weight->spec.cut.along == o.cut.along, name, ": weight ",
          weight->cut.global(), " shared as [", o.out, ", ", o.in, "]");
  weight->spec.grad_from_product = true;
  return *weight;
}

}  // namespace

std::vector<std::string> within(const std::string& module, std::vector<std::string> parts) {
  for (std::string& part : parts) part = module + "." + part;
  return parts;
}

Linear::Linear(const Options& o, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : name_(o.parts.front() + (o.parts.size() > 1 ? ".fused" : "")),
      parts_(o.parts),
      recipe_(recipe),
      compute_(recipes::compute_of(recipe, o.parts)),
      weight_(&make_weight(name_, o, store)),
      bias_(o.bias ? &store.add({.name = name_ + ".bias",
                                 .shape = {o.out},
                                 .cut = o.cut.along == parallel::Cut::rows ? o.cut : parallel::CutRule{},
                                 .init_std = 0.0,
                                 .decay = false})
                   : nullptr),
      scales_(&scales),
      x_({.linears = {name_},
          .role = Role::activation,
          .cols = weight_->spec.shape[1],
          .fp8 = is_fp8(),
          .shared = o.cut.along == parallel::Cut::rows,
          .wgrad = wgrad_reads(),
          .slots = {add_slot(Role::activation, o.cut.along == parallel::Cut::rows)}},
         recipe, scales),
      weight_slot_(weight_->spec.frozen ? -1 : add_slot(Role::weight)),
      g_({.linears = {name_},
          .role = Role::gradient,
          .cols = weight_->spec.shape[0],
          .fp8 = is_fp8(),
          .shared = o.cut.along == parallel::Cut::columns,
          .wgrad = wgrad_reads(),
          .reads_values = o.bias && !weight_->spec.frozen && o.cut.along != parallel::Cut::columns,
          .slots = {add_slot(Role::gradient, o.cut.along == parallel::Cut::columns)}},
         recipe, scales) {
  if (!is_fp8()) return;
  recipes::check_shape(recipe_, name_, weight_->spec.shape[0], weight_->spec.shape[1]);
  weight_->spec.quant = recipe_.w;
  if (weight_->spec.frozen) weight_->spec.quant->source = ScaleSource::tensor;  // it has no history, because it is cast once
  weight_->spec.keeps_transpose = recipe_.weight_transpose_cache;
  weight_->spec.read_as_values = o.shared_weight != nullptr;
}

int Linear::add_slot(Role role, bool sent) {
  if (!is_fp8() || !recipe_.delayed()) return -1;
  return scales_->add(name_, role,
                      !weight_->spec.expert || sent ? recipes::HeldBy::all
                      : weight_->held               ? recipes::HeldBy::some
                                                    : recipes::HeldBy::elsewhere);
}

WgradReads Linear::wgrad_reads() const {
  if (weight_->spec.frozen) return WgradReads::nothing;
  return is_fp8() && !recipe_.wgrad_bf16 ? WgradReads::codes : WgradReads::values;
}

void Linear::adapt(const std::vector<std::size_t>& parts, std::int64_t rank, double scale, const InputDropout& dropout,
                   parallel::ParameterStore& store) {
  adapter_ = std::make_unique<Adapter>(Adapter::Options{.linear = name_,
                                                        .weight = weight_,
                                                        .part_count = parts_.size(),
                                                        .parts = parts,
                                                        .rank = rank,
                                                        .scale = scale,
                                                        .dropout = dropout},
                                       store);
  x_.serve_adapter();
  g_.serve_adapter();
}

void Linear::bind() {
  if (weight_slot_ >= 0) weight_->scale_slot = scales_->slot(weight_slot_);
}

void Linear::add_bias(const Scope& scope, const Tensor& y) const {
  if (!bias_) return;
  Tensor rows = bias_->value.reshape({1, y.cols()});
  rows.shape[0] = y.rows();
  rows.row_stride = 0;
  kernels::add(scope.stream, {.x = rows, .y = y});
}

Operand Linear::complete_input(const Scope& scope, const Operand& operand, Reads reads) const {
  Operand x = start_input(scope, operand, reads);
  x_.finish(scope, x);
  Quantizer::release(scope, x);
  return x;
}

// An adapter reads all tokens at once.
Operand Linear::start_input(const Scope& scope, const Operand& operand, Reads reads) const {
  if (!adapter_) return x_.start(scope, operand, reads);
  Operand x = x_.complete(scope, operand, reads);
  x.low_rank = adapter_products().reduce(scope, reads == Reads::fprop ? scope.scratch : scope.stash.get(), x.values);
  return x;
}

Operand Linear::start_gradient(const Scope& scope, const Operand& operand) const {
  if (bias_ && !bias_->spec.frozen) {
    kernels::column_sums(scope.stream, scope.scratch, {.x = operand.values, .y = bias_->grad});
  }
  if (!adapter_) return g_.start(scope, operand, Reads::fprop_and_wgrad);
  Operand g = g_.complete(scope, operand, Reads::fprop_and_wgrad);
  g.low_rank = adapter_products().reduce_gradient(scope, scope.scratch, g.values);
  return g;
}

void Linear::watch_weight(const Scope& scope) const {
  const Tensor& w = weight_->primary();
  if (scope.watch && w && w.shape == weight_->spec.shape) scope.watch->operand(scope, name_, Role::weight, w, weight_->codes);
}

// A GEMM takes a scale for each row of both operands, or of neither.
kernels::GemmOperand Linear::fprop_weight(const Scope& scope, ScaleTile tile) const {
  if (!is_fp8()) return {.values = weight_->value};
  Quantized w = weight_->codes;
  if (tile != ScaleTile::row || w.tile != ScaleTile::tensor) return kernels::row_operand(w);
  const std::int64_t out = weight_->spec.shape[0];
  Tensor same = w.rowwise_scale_inv.reshape({1, 1});
  same.shape[0] = out;
  same.row_stride = 0;
  w.tile = tile;
  w.rowwise_scale_inv = allocate(scope.scratch, w.rowwise_scale_inv.dtype, {out});
  kernels::cast(scope.stream, {.x = same, .y = w.rowwise_scale_inv.reshape({out, 1})});
  return kernels::row_operand(w);
}

kernels::GemmOperand Linear::dgrad_weight(const Scope& scope) const {
  return is_fp8() ? kernels::transposed_operand(weight_columnwise(scope)) : kernels::transposed_values(weight_->value);
}

// Makes columnwise codes in the scratch if the parameter has none and the rowwise ones do not stand for them.
Quantized Linear::weight_columnwise(const Scope& scope) const {
  const std::int64_t out = weight_->spec.shape[0], in = weight_->spec.shape[1];
  Quantized q = weight_->codes;
  if (q.columnwise || q.rowwise_serves_both()) return q;
  q.columnwise = allocate(scope.scratch, q.rowwise.dtype, {in, out});
  if (weight_->column_codes) {  // codes scaled along columns, in the order of rows; their scales are there
    q.rowwise = weight_->column_codes;
  } else {
    q.columnwise_scale_inv = q.tile == ScaleTile::tensor
                                 ? q.rowwise_scale_inv
                                 : allocate(scope.scratch, q.rowwise_scale_inv.dtype, scale_shape(q.tile, in, out));
  }
  kernels::transpose_codes(scope.stream, q);
  return q;
}

void Linear::run(const Scope& scope, const char* which, const Gemm& gemm) const {
  kernels::gemm(scope.stream, scope.scratch, gemm);
  if (is_fp8() && scope.watch) watch_product(scope, name_, which, gemm);
}

void Linear::fprop(const Scope& scope, const Operand& x, const Tensor& residual, const Tensor& y) const {
  const ArenaScope temporaries(scope.scratch);
  Gemm gemm{.a = {.values = x.values}, .b = fprop_weight(scope, x.codes.tile), .c = residual, .d = y};
  if (is_fp8()) {
    watch_weight(scope);
    gemm.a = kernels::row_operand(x.codes);
    gemm.accumulation = recipe_.fprop;
  }
  run(scope, "y", gemm);
  if (adapter_) adapter_products().fprop(scope, x.low_rank, y);
}

void Linear::dgrad(const Scope& scope, const Operand& g, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  dgrad(scope, g, dgrad_weight(scope), gx);
}

void Linear::dgrad(const Scope& scope, const Operand& g, const kernels::GemmOperand& w, const Tensor& gx) const {
  Gemm gemm{.a = {.values = g.values}, .b = w, .d = gx, .accumulation = recipe_.dgrad};
  if (is_fp8()) gemm.a = kernels::row_operand(g.codes);
  run(scope, "gx", gemm);
  if (adapter_) adapter_products().dgrad(scope, g.low_rank, gx);
}

void Linear::wgrad(const Scope& scope, const Operand& g, const Operand& x) const {
  if (adapter_) adapter_products().wgrad(scope, g, x);
  if (weight_->spec.frozen) return;
  const ArenaScope temporaries(scope.scratch);
  const Tensor& gw = weight_->grad;
  Gemm gemm{.a = kernels::transposed_values(g.values),
            .b = kernels::transposed_values(x.values),
            .c = weight_->grad_begins(scope.begins) ? Tensor{} : gw,
            .d = gw,
            .accumulation = recipe_.wgrad};
  if (!x_.keeps_values()) {
    gemm.a = kernels::transposed_operand(g.codes);
    gemm.b = kernels::transposed_operand(x.codes);
  }
  run(scope, "gw", gemm);
}

}  // namespace octet::nn
