#pragma once

#include <string>

#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

// y = x * rstd * weight (kernels/rmsnorm). The weight starts at one.
class RmsNorm {
 public:
  RmsNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store);

  parallel::Parameter& weight() const { return *weight_; }
  // y [T, D] and rstd [T] are overwritten.
  void forward(const Scope& scope, const Tensor& x, const Tensor& y, const Tensor& rstd) const;
  // gx is added to, and so is the weight's gradient.
  void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& rstd, const Tensor& gx) const;

 private:
  parallel::Parameter* weight_;
  double epsilon_;
};

// Rows of statistics (rstd, lse, loss) are FP32, or F64 in F64.
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace octet::nn
