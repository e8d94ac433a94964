// The norms, over the D columns of each row of x [T, D]. T is this rank's share of the tokens.
//   rms    y = x * rstd * weight                    (Zhang and Sennrich, 2019; kernels/rmsnorm)
//   layer  y = (x - mean) * rstd * weight + bias    (Ba et al., 2016; kernels/layernorm)
#pragma once

#include <cstdint>
#include <string>

#include "octet/nn/linear.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

enum class NormKind : std::uint8_t { rms, layer };

// The RMSNorms that attention's Q and K pass before they are rotated.
enum class QkNorm : std::uint8_t {
  none,
  head,   // of each head: all heads of Q have one weight, all heads of K another (kernels/head_norm)
  whole,  // of all of Q, and of all of K; the tensor axis cannot cut these
};

class Norm {
 public:
  // Adds `name`.weight, which starts at one, and for a layer norm `name`.bias, which starts at zero.
  Norm(NormKind kind, const std::string& name, std::int64_t dim, double epsilon, parallel::ParameterStore& store);

  // Allocates what forward keeps for backward: rstd [T], or mean and rstd [2, T].
  Tensor allocate_statistics(const Scope& scope, Arena& arena, std::int64_t tokens) const;
  // Overwrites y (values or codes) and the statistics.
  void forward(const Scope& scope, const Tensor& x, const Operand& y, const Tensor& statistics) const;
  // Adds to the values of gx and, unless they are frozen, to the gradients of weight and bias. If codes of gx are wanted, they
  // are the codes of the sum.
  void backward(const Scope& scope, const Tensor& gy, const Tensor& x, const Tensor& statistics, const Operand& gx) const;

  parallel::Parameter& weight() const { return *weight_; }
  parallel::Parameter& bias() const { return *bias_; }  // only of a layer norm

 private:
  std::string name_;
  NormKind kind_;
  double epsilon_;
  parallel::Parameter* weight_;
  parallel::Parameter* bias_ = nullptr;
};

}  // namespace octet::nn
