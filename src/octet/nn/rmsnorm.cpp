#include "octet/nn/rmsnorm.h"

#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::nn {

RmsNorm::RmsNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store)
    : weight_(&store.add({.name = name + ".weight", .shape = {dim}, .init = parallel::Init::ones, .decay = false})),
      epsilon_(epsilon) {}

Tensor RmsNorm::allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const {
  return allocate(arena, statistics_dtype(scope.dtype), {tokens});
}

void RmsNorm::forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& rstd) const {
  kernels::rmsnorm_forward(
      scope.queue, scope.scratch,
      {.x = x, .weight = weight_->value, .epsilon = epsilon_, .y = y.values, .codes = y.codes, .rstd = rstd});
}

void RmsNorm::backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& rstd, const LinearOperand& gx) const {
  kernels::rmsnorm_backward(
      scope.queue, scope.scratch,
      {.gy = gy, .x = x, .weight = weight_->value, .rstd = rstd, .gx = gx.values, .gweight = weight_->grad, .codes = gx.codes});
}

}  // namespace octet::nn
