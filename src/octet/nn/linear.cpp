#include "octet/nn/linear.h"

#include "octet/kernels/column_sums/column_sums.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/recipes/registry.h"

namespace octet::nn {
namespace {

using kernels::Gemm;

parallel::Parameter& make_weight(const std::string& name, const LinearWeight::Options& o, parallel::ParameterStore& store) {
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

std::vector<LinearWeight> only(LinearWeight weight) {
  std::vector<LinearWeight> weights;
  weights.push_back(std::move(weight));
  return weights;
}

}  // namespace

std::vector<std::string> within(const std::string& module, std::vector<std::string> parts) {
  for (std::string& part : parts) part = module + "." + part;
  return parts;
}

LinearWeight::LinearWeight(const Options& o, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : name_(o.parts.front() + (o.parts.size() > 1 ? ".fused" : "")),
      parts_(o.parts),
      compute_(recipes::compute_of(recipe, o.parts)),
      weight_(&make_weight(name_, o, store)),
      bias_(o.bias ? &store.add({.name = name_ + ".bias",
                                 .shape = {o.out},
                                 .cut = o.cut.along == parallel::Cut::rows ? o.cut : parallel::CutRule{},
                                 .init_std = 0.0,
                                 .decay = false})
                   : nullptr),
      scales_(&scales),
      slots_{-1, -1, -1} {
  if (!is_fp8()) return;
  if (recipe.delayed()) {
    add_slot(Role::activation, o.cut.along == parallel::Cut::rows);
    if (!weight_->spec.frozen) add_slot(Role::weight);
    add_slot(Role::gradient, o.cut.along == parallel::Cut::columns);
  }
  recipes::check_shape(recipe, name_, weight_->spec.shape[0], weight_->spec.shape[1]);
  weight_->spec.quant = recipe.w;
  if (weight_->spec.frozen) weight_->spec.quant->source = ScaleSource::tensor;  // it has no history, because it is cast once
  weight_->spec.keeps_transpose = recipe.weight_transpose_cache;
  weight_->spec.read_as_values = o.shared_weight != nullptr;
}

void LinearWeight::add_slot(Role role, bool sent) {
  slots_[static_cast<std::size_t>(role)] = scales_->add(name_, role,
                                                        !weight_->spec.expert || sent ? recipes::HeldBy::all
                                                        : weight_->held               ? recipes::HeldBy::some
                                                                                      : recipes::HeldBy::elsewhere);
}

void LinearWeight::adapt(const Adapter::Options& options, parallel::ParameterStore& store) {
  adapter_ = std::make_unique<Adapter>(name_, *weight_, parts_.size(), options, store);
}

void LinearWeight::bind() {
  if (slot(Role::weight) >= 0) weight_->scale_slot = scales_->slot(slot(Role::weight));
}

void LinearWeight::watch(const Scope& scope) const {
  const Tensor& w = weight_->primary();
  if (scope.watch && w && w.shape == weight_->spec.shape) scope.watch->operand(scope, name_, Role::weight, w, weight_->codes);
}

// A GEMM takes a scale for each row of both operands, or of neither.
kernels::GemmOperand LinearWeight::fprop_operand(const Scope& scope, ScaleTile tile) const {
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

// Makes columnwise codes in the scratch if the parameter has none and the rowwise ones cannot replace them.
kernels::GemmOperand LinearWeight::dgrad_operand(const Scope& scope) const {
  if (!is_fp8()) return kernels::transposed_values(weight_->value);
  const std::int64_t out = weight_->spec.shape[0], in = weight_->spec.shape[1];
  Quantized q = weight_->codes;
  if (q.columnwise || q.rowwise_serves_both()) return kernels::transposed_operand(q);
  q.columnwise = allocate(scope.scratch, q.rowwise.dtype, {in, out});
  if (weight_->column_codes) {  // codes scaled along columns, in the order of rows; their scales are there
    q.rowwise = weight_->column_codes;
  } else {
    q.columnwise_scale_inv = q.tile == ScaleTile::tensor
                                 ? q.rowwise_scale_inv
                                 : allocate(scope.scratch, q.rowwise_scale_inv.dtype, scale_shape(q.tile, in, out));
  }
  kernels::transpose_codes(scope.stream, q);
  return kernels::transposed_operand(q);
}

Linear::Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : Linear(only(LinearWeight(options, recipe, store, scales)), {}, recipe, scales) {}

Linear::Linear(std::vector<LinearWeight> weights, const parallel::ExpertPlace& place, const Recipe& recipe,
               const recipes::ScaleState& scales)
    : recipe_(recipe),
      weights_(std::move(weights)),
      first_(static_cast<std::size_t>(place.begin(static_cast<std::int64_t>(weights_.size())))),
      count_(weights_.size() / static_cast<std::size_t>(place.size)),
      x_(operand(Role::activation), recipe, scales),
      g_(operand(Role::gradient), recipe, scales) {
  for (const LinearWeight& weight : weights_) {
    demand(weight.is_fp8() == is_fp8(), ExitCode::config, "precision.skip: keeps only one of ", weight.name(), " and ", name(),
           " in BF16, but the experts of a layer have one precision; give \"", recipes::skip_pattern(weight.name()),
           "\" for all of them");
  }
}

Quantizer::Options Linear::operand(Role role) const {
  const bool is_x = role == Role::activation;
  const parallel::ParameterSpec& spec = weight().spec;
  Quantizer::Options options{.role = role,
                             .cols = spec.shape[is_x ? 1 : 0],
                             .fp8 = is_fp8(),
                             .shared = cut() == (is_x ? parallel::Cut::rows : parallel::Cut::columns),
                             .wgrad = spec.frozen                       ? WgradReads::nothing
                                      : is_fp8() && !recipe_.wgrad_bf16 ? WgradReads::codes
                                                                        : WgradReads::values,
                             .reads_values = !is_x && bias() && !spec.frozen && cut() != parallel::Cut::columns};
  for (const LinearWeight& weight : own()) {
    options.linears.push_back(weight.name());
    options.slots.push_back(weight.slot(role));
  }
  if (!of_experts()) return options;
  for (const LinearWeight& weight : weights_) options.sent.push_back(weight.slot(role));
  return options;
}

void Linear::serve_adapters() {
  const auto parts_of = [](const LinearWeight& weight) {
    return weight.adapter() ? weight.adapter()->options().parts : std::vector<std::size_t>{};
  };
  for (const LinearWeight& weight : weights_) {
    demand(parts_of(weight) == parts_of(weights_.front()), ExitCode::config, "lora.targets: ", weight.name(), " and ",
           weights_.front().name(), " are adapted in different modules, but the experts of a layer are adapted alike");
  }
  if (!own().front().adapter()) return;
  std::vector<const Adapter*> adapters;
  for (const LinearWeight& weight : own()) adapters.push_back(weight.adapter());
  adapters_.emplace(std::move(adapters), weights_.front().name(), static_cast<std::int64_t>(first_));
  x_.serve_adapter();
  g_.serve_adapter();
}

void Linear::add_bias(const Scope& scope, const Tensor& y) const {
  if (!bias()) return;
  Tensor rows = bias()->value.reshape({1, y.cols()});
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
  if (!adapters_) return x_.start(scope, operand, reads);
  Operand x = x_.complete(scope, operand, reads);
  x.low_rank = adapters_->reduce(scope, reads == Reads::fprop ? scope.scratch : scope.stash.get(), x.values);
  return x;
}

Operand Linear::start_gradient(const Scope& scope, const Operand& operand) const {
  if (bias() && !bias()->spec.frozen) {
    kernels::column_sums(scope.stream, scope.scratch, {.x = operand.values, .y = bias()->grad});
  }
  if (!adapters_) return g_.start(scope, operand, Reads::fprop_and_wgrad);
  Operand g = g_.complete(scope, operand, Reads::fprop_and_wgrad);
  g.low_rank = adapters_->reduce_gradient(scope, scope.scratch, g.values);
  return g;
}

void Linear::watch(const Scope& scope, const char* which, const std::function<Gemm(const GroupExtent&)>& product) const {
  if (!is_fp8() || !scope.watch) return;
  for (const GroupExtent& part : watched_groups(scope)) {
    const ArenaScope temporaries(scope.scratch);
    Gemm alone = product(part);
    alone.d = {nullptr, DType::f32, {alone.a.rows(), alone.b.rows()}};
    scope.watch->product(scope, own()[part.group].name(), which, alone);
  }
}

void Linear::fprop(const Scope& scope, const Operand& x, const Tensor& residual, const Tensor& y) const {
  const ArenaScope temporaries(scope.scratch);
  AlongRows op{.a = {.values = x.values}, .c = residual, .d = y};
  // A grouped product takes a weight with one scale together with rows that have a scale each.
  const ScaleTile tile = scope.groups ? ScaleTile::tensor : x.codes.tile;
  for (const LinearWeight& weight : own()) op.b.push_back(weight.fprop_operand(scope, tile));
  if (is_fp8()) {
    for (const LinearWeight& weight : own()) weight.watch(scope);
    op.a = kernels::row_operand(x.codes);
    op.accumulation = recipe_.fprop;
  }
  multiply(scope, op);
  watch(scope, "y", [&](const GroupExtent& part) {
    Gemm alone{
        .a = kernels::row_operand(watched_codes(scope, x.codes, part)), .b = op.b[part.group], .accumulation = op.accumulation};
    if (alone.b.tile != alone.a.tile) alone.b = own()[part.group].fprop_operand(scope, alone.a.tile);
    return alone;
  });
  if (adapters_) adapters_->fprop(scope, x.low_rank, y);
}

Linear::Weights Linear::dgrad_weights(const Scope& scope) const {
  Weights result;
  for (const LinearWeight& weight : own()) result.push_back(weight.dgrad_operand(scope));
  return result;
}

void Linear::dgrad(const Scope& scope, const Operand& g, const Weights& w, const Tensor& gx) const {
  AlongRows op{.a = {.values = g.values}, .b = w, .d = gx, .accumulation = recipe_.dgrad};
  if (is_fp8()) op.a = kernels::row_operand(g.codes);
  multiply(scope, op);
  watch(scope, "gx", [&](const GroupExtent& part) -> Gemm {
    return {.a = kernels::row_operand(watched_codes(scope, g.codes, part)), .b = w[part.group], .accumulation = op.accumulation};
  });
  if (adapters_) adapters_->dgrad(scope, g.low_rank, gx);
}

void Linear::wgrad(const Scope& scope, const Operand& g, const Operand& x) const {
  if (adapters_) adapters_->wgrad(scope, g, x);
  if (weight().spec.frozen) return;
  const ArenaScope temporaries(scope.scratch);
  AlongTokens op{.a = kernels::transposed_values(g.values),
                 .b = kernels::transposed_values(x.values),
                 .accumulate = !weight().overwrites_grad(scope.overwrites),
                 .accumulation = recipe_.wgrad};
  const bool reads_codes = !x_.keeps_values();
  if (reads_codes) {
    op.a = kernels::transposed_operand(g.codes);
    op.b = kernels::transposed_operand(x.codes);
  }
  for (const LinearWeight& weight : own()) op.d.push_back(weight.weight().grad);
  multiply(scope, op);
  if (!reads_codes && scope.groups) return;  // a watch sees no values of groups
  watch(scope, "gw", [&](const GroupExtent& part) -> Gemm {
    if (!reads_codes) return {.a = op.a, .b = op.b, .accumulation = op.accumulation};
    return {.a = kernels::transposed_operand(watched_codes(scope, g.codes, part)),
            .b = kernels::transposed_operand(watched_codes(scope, x.codes, part)),
            .accumulation = op.accumulation};
  });
}

}  // namespace octet::nn
