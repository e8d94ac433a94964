#include "octet/nn/norm.h"

#include "octet/kernels/layernorm/layernorm.h"
#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::nn {
namespace {

Tensor row(const Tensor& statistics, std::int64_t i) { return statistics.slice_rows(i, i + 1).reshape({statistics.cols()}); }

}  // namespace

Norm::Norm(NormKind kind, const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store)
    : name_(name),
      kind_(kind),
      epsilon_(epsilon),
      weight_(&store.add({.name = name + ".weight", .shape = {dim}, .init = parallel::Init::ones, .decay = false})) {
  if (kind == NormKind::layer) bias_ = &store.add({.name = name + ".bias", .shape = {dim}, .init_std = 0.0, .decay = false});
}

Tensor Norm::allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const {
  const DType dtype = statistics_dtype(scope.dtype);
  return kind_ == NormKind::rms ? allocate(arena, dtype, {tokens}) : allocate(arena, dtype, {2, tokens});
}

void Norm::forward(const Scope& scope, const Tensor& x, const Operand& y, const Tensor& statistics) const {
  if (scope.watch) scope.watch->norm(scope, name_, weight_->value);
  if (kind_ == NormKind::rms) {
    return kernels::rmsnorm_forward(
        scope.stream, scope.scratch,
        {.x = x, .weight = weight_->value, .epsilon = epsilon_, .y = y.values, .codes = y.epilogue, .rstd = statistics});
  }
  kernels::layernorm_forward(scope.stream, scope.scratch,
                             {.x = x,
                              .weight = weight_->value,
                              .bias = bias_->value,
                              .epsilon = epsilon_,
                              .y = y.values,
                              .codes = y.epilogue,
                              .mean = row(statistics, 0),
                              .rstd = row(statistics, 1)});
}

void Norm::backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& statistics, const Operand& gx) const {
  if (kind_ == NormKind::rms) {
    return kernels::rmsnorm_backward(scope.stream, scope.scratch,
                                     {.gy = gy,
                                      .x = x,
                                      .weight = weight_->value,
                                      .rstd = statistics,
                                      .gx = gx.values,
                                      .gweight = weight_->grad,
                                      .codes = gx.epilogue});
  }
  kernels::layernorm_backward(scope.stream, scope.scratch,
                              {.gy = gy,
                               .x = x,
                               .weight = weight_->value,
                               .mean = row(statistics, 0),
                               .rstd = row(statistics, 1),
                               .gx = gx.values,
                               .gweight = weight_->grad,
                               .gbias = bias_->grad,
                               .codes = gx.epilogue});
}

}  // namespace octet::nn
