#include "octet/nn/layernorm.h"

#include "octet/kernels/layernorm/layernorm.h"

namespace octet::nn {
namespace {

Tensor row(const Tensor& statistics, std::int64_t i) { return statistics.slice_rows(i, i + 1).reshape({statistics.cols()}); }

}  // namespace

LayerNorm::LayerNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store)
    : weight_(&store.add({.name = name + ".weight", .shape = {dim}, .init = parallel::Init::ones, .decay = false})),
      bias_(&store.add({.name = name + ".bias", .shape = {dim}, .init_std = 0.0, .decay = false})),
      epsilon_(epsilon) {}

Tensor LayerNorm::allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const {
  return allocate(arena, statistics_dtype(scope.dtype), {2, tokens});
}

void LayerNorm::forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& statistics) const {
  kernels::layernorm_forward(scope.queue, scope.scratch,
                             {.x = x,
                              .weight = weight_->value,
                              .bias = bias_->value,
                              .epsilon = epsilon_,
                              .y = y.values,
                              .codes = y.codes,
                              .mean = row(statistics, 0),
                              .rstd = row(statistics, 1)});
}

void LayerNorm::backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& statistics,
                         const LinearOperand& gx) const {
  kernels::layernorm_backward(scope.queue, scope.scratch,
                              {.gy = gy,
                               .x = x,
                               .weight = weight_->value,
                               .mean = row(statistics, 0),
                               .rstd = row(statistics, 1),
                               .gx = gx.values,
                               .gweight = weight_->grad,
                               .gbias = bias_->grad,
                               .codes = gx.codes});
}

}  // namespace octet::nn
