#include "octet/nn/expert_linear.h"

#include <utility>

#include "octet/recipes/registry.h"

namespace octet::nn {

using kernels::Gemm;
using kernels::GroupedGemmK;
using kernels::GroupedGemmM;

ExpertLinear::ExpertLinear(std::vector<std::unique_ptr<Linear>> experts, std::size_t first, std::size_t count,
                           const Recipe& recipe, const recipes::ScaleState& scales)
    : experts_(std::move(experts)),
      first_(first),
      count_(count),
      x_(options_of(&Linear::x), recipe, scales),
      g_(options_of(&Linear::g), recipe, scales) {
  for (const auto& expert : experts_) {
    demand(expert->is_fp8() == is_fp8(), ExitCode::config, "precision.skip: keeps only one of ", expert->name(), " and ",
           own(0).name(), " in BF16, but the experts of a layer have one precision; give \"",
           recipes::skip_pattern(expert->name()), "\" for all of them");
  }
}

Quantizer::Options ExpertLinear::options_of(const Quantizer& (Linear::*operand)() const) const {
  Quantizer::Options options = (own(0).*operand)().options();
  options.shared = false;  // an expert sees the rows of all ranks of the tensor axis
  for (std::size_t i = 1; i < count_; ++i) {
    const Quantizer::Options& other = (own(i).*operand)().options();
    options.linears.push_back(other.linears.front());
    options.slots.push_back(other.slots.front());
  }
  for (const auto& expert : experts_) options.sent.push_back((*expert.*operand)().options().slots.front());
  return options;
}

void ExpertLinear::serve_adapters() {
  const auto parts_of = [](const Linear& expert) {
    return expert.adapter() ? expert.adapter()->options().parts : std::vector<std::size_t>{};
  };
  for (const auto& expert : experts_) {
    demand(parts_of(*expert) == parts_of(*experts_.front()), ExitCode::config, "lora.targets: ", expert->name(), " and ",
           experts_.front()->name(), " are adapted in different modules, but the experts of a layer are adapted alike");
  }
  if (!own(0).adapter()) return;
  std::vector<const Adapter*> adapters;
  for (std::size_t i = 0; i < count_; ++i) adapters.push_back(own(i).adapter());
  adapters_.emplace(std::move(adapters), experts_.front()->name(), static_cast<std::int64_t>(first_));
  x_.serve_adapter();
  g_.serve_adapter();
}

Operand ExpertLinear::complete_input(const Scope& scope, const Operand& operand, Reads reads) const {
  Operand x = x_.complete(scope, operand, reads);
  if (adapters_) x.low_rank = adapters_->reduce(scope, reads == Reads::fprop ? scope.scratch : scope.stash.get(), x.values);
  return x;
}

Operand ExpertLinear::complete_gradient(const Scope& scope, const Operand& operand) const {
  Operand g = g_.complete(scope, operand, Reads::fprop_and_wgrad);
  if (adapters_) g.low_rank = adapters_->reduce_gradient(scope, scope.scratch, g.values);
  return g;
}

void ExpertLinear::watch(const Scope& scope, const char* which, const std::function<Gemm(const GroupPart&)>& product) const {
  if (!is_fp8() || !scope.watch) return;
  for (const GroupPart& part : watched_groups(scope)) {
    const ArenaScope temporaries(scope.scratch);
    watch_product(scope, own(part.group).name(), which, product(part));
  }
}

kernels::Gemm ExpertLinear::product_of(const Scope& scope, const GroupPart& part, const GroupedGemmM& op,
                                       const Quantized& a) const {
  Gemm alone{.a = kernels::row_operand(watched_codes(scope, a, part)), .b = op.b[part.group], .accumulation = op.accumulation};
  if (alone.a.tile == ScaleTile::row) alone.b = own(part.group).fprop_weight(scope, alone.a.tile);
  return alone;
}

void ExpertLinear::fprop(const Scope& scope, const Operand& x, const Tensor& y) const {
  const ArenaScope temporaries(scope.scratch);
  GroupedGemmM op{.groups = *scope.groups, .a = {.values = x.values}, .d = y};
  if (is_fp8()) {
    for (std::size_t i = 0; i < count_; ++i) own(i).watch_weight(scope);
    op.a = kernels::row_operand(x.codes);
    op.accumulation = own(0).recipe().fprop;
  }
  // A grouped product takes a weight with one scale beside rows that have a scale each.
  for (std::size_t i = 0; i < count_; ++i) op.b.push_back(own(i).fprop_weight(scope, ScaleTile::tensor));
  kernels::grouped_gemm(scope.stream, scope.scratch, op);
  watch(scope, "y", [&](const GroupPart& part) { return product_of(scope, part, op, x.codes); });
  if (adapters_) adapters_->fprop(scope, x.low_rank, y);
}

void ExpertLinear::dgrad(const Scope& scope, const Operand& g, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  GroupedGemmM op{.groups = *scope.groups, .a = {.values = g.values}, .d = gx, .accumulation = own(0).recipe().dgrad};
  if (is_fp8()) op.a = kernels::row_operand(g.codes);
  for (std::size_t i = 0; i < count_; ++i) op.b.push_back(own(i).dgrad_weight(scope));
  kernels::grouped_gemm(scope.stream, scope.scratch, op);
  watch(scope, "gx", [&](const GroupPart& part) { return product_of(scope, part, op, g.codes); });
  if (adapters_) adapters_->dgrad(scope, g.low_rank, gx);
}

void ExpertLinear::wgrad(const Scope& scope, const Operand& g, const Operand& x) const {
  if (adapters_) adapters_->wgrad(scope, g, x);
  if (own(0).weight().spec.frozen) return;
  const ArenaScope temporaries(scope.scratch);
  GroupedGemmK op{.groups = *scope.groups,
                  .a = kernels::transposed_values(g.values),
                  .b = kernels::transposed_values(x.values),
                  .accumulate = !own(0).weight().grad_begins(scope.begins),
                  .accumulation = own(0).recipe().wgrad};
  if (!x_.keeps_values()) {
    op.a = kernels::transposed_operand(g.codes);
    op.b = kernels::transposed_operand(x.codes);
  }
  for (std::size_t i = 0; i < count_; ++i) op.d.push_back(own(i).weight().grad);
  kernels::grouped_gemm(scope.stream, scope.scratch, op);
  if (x_.keeps_values()) return;
  watch(scope, "gw", [&](const GroupPart& part) -> Gemm {
    return {.a = kernels::transposed_operand(watched_codes(scope, g.codes, part)),
            .b = kernels::transposed_operand(watched_codes(scope, x.codes, part)),
            .accumulation = op.accumulation};
  });
}

Operand linear_forward(const Scope& scope, const ExpertLinear& linear, const Operand& input, Reads reads, const Tensor& residual,
                       const Tensor& y) {
  require(!residual, "experts add no residual");
  const ArenaScope temporaries(scope.scratch);
  const Operand x = linear.complete_input(scope, input, reads);
  linear.fprop(scope, x, y);
  return reads == Reads::fprop ? Operand{} : linear.x().for_wgrad(x);
}

void linear_backward(const Scope& scope, const ExpertLinear& linear, const Operand& produced, const Operand& x,
                     const Tensor& gx) {
  const ArenaScope temporaries(scope.scratch);
  const Operand g = linear.complete_gradient(scope, produced);
  linear.dgrad(scope, g, gx);
  linear.wgrad(scope, g, x);
}

}  // namespace octet::nn
