#include "octet/nn/rmsnorm.h"

#include "octet/kernels/rmsnorm/rmsnorm.h"

namespace octet::nn {

RmsNorm::RmsNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store)
    : weight_(&store.add({.name = name + ".weight", .shape = {dim}, .init = parallel::Init::ones, .decay = false})),
      epsilon_(epsilon) {}

void RmsNorm::forward(const Scope& scope, const Tensor& x, const Tensor& y, const Tensor& rstd) const {
  kernels::rmsnorm_forward(scope.queue, {.x = x, .weight = weight_->value, .epsilon = epsilon_, .y = y, .rstd = rstd});
}

void RmsNorm::backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& rstd, const Tensor& gx) const {
  kernels::rmsnorm_backward(scope.queue, scope.scratch,
                            {.gy = gy, .x = x, .weight = weight_->value, .rstd = rstd, .gx = gx, .gweight = weight_->grad});
}

}  // namespace octet::nn
