#pragma once

#include "octet/nn/norm.h"

namespace octet::nn {

// y = x * rstd * weight (kernels/rmsnorm). The weight starts at one.
class RmsNorm : public Norm {
 public:
  RmsNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store);

  parallel::Parameter& weight() const { return *weight_; }
  // rstd [T].
  Tensor allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const override;
  void forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& rstd) const override;
  void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& rstd,
                const LinearOperand& gx) const override;

 private:
  parallel::Parameter* weight_;
  double epsilon_;
};

}  // namespace octet::nn
