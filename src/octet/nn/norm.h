// What norms have in common. Activations, gradients and statistics are of a rank's share of the tokens, T.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "octet/nn/linear.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

class Norm {
 public:
  virtual ~Norm() = default;
  // What forward leaves of the rows of x [T, D] for backward.
  virtual Tensor allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const = 0;
  // y (values or codes) and the statistics are overwritten.
  virtual void forward(const Scope& scope, const Tensor& x, const LinearOperand& y, const Tensor& statistics) const = 0;
  // The values of gx are added to, and so are the gradients of the norm's parameters; codes of gx, where wanted, are of the sum.
  virtual void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& statistics,
                        const LinearOperand& gx) const = 0;
};

enum class NormKind : std::uint8_t { rms, layer };
std::unique_ptr<Norm> make_norm(NormKind kind, const std::string& name, std::int64_t dim, double epsilon,
                                parallel::ParameterStore& store);

// Rows of statistics (mean, rstd, lse, loss) are FP32, or F64 in F64.
constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace octet::nn
