#pragma once

#include "octet/nn/norm.h"

namespace octet::nn {

// y = (x - mean) * rstd * weight + bias (kernels/layernorm). The weight starts at one, the bias at zero.
class LayerNorm : public Norm {
 public:
  LayerNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store);

  parallel::Parameter& weight() const { return *weight_; }
  parallel::Parameter& bias() const { return *bias_; }
  // [2, T]: mean and rstd.
  Tensor allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const override;
  void forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& statistics) const override;
  void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& statistics,
                const LinearOperand& gx) const override;

 private:
  parallel::Parameter *weight_, *bias_;
  double epsilon_;
};

}  // namespace octet::nn
