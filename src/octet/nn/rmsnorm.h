#pragma once

#include <string>

#include "octet/nn/linear.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

// y = x * rstd * weight (kernels/rmsnorm). The weight starts at one.
class RmsNorm {
 public:
  RmsNorm(const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store);

  parallel::Parameter& weight() const { return *weight_; }
  // y (values or codes) and rstd [T] are overwritten.
  void forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& rstd) const;
  // The values of gx are added to, and so is the weight's gradient; codes of gx, where wanted, are of the sum.
  void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& rstd, const LinearOperand& gx) const;

 private:
  parallel::Parameter* weight_;
  double epsilon_;
};

// Rows of statistics (rstd, lse, loss) are FP32, or F64 in F64.
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace octet::nn
