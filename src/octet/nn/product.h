// The products of a linear and of its adapter: one GEMM if there is one weight, or a grouped GEMM if scope.groups has the rows
// of many experts with a weight each. The number of launches does not depend on the number of experts.
#pragma once

#include <vector>

#include "octet/kernels/gemm/gemm.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// fprop and dgrad:  d = factor a · bᵀ (+ c)
struct AlongRows {
  kernels::GemmOperand a;               // [T, K]
  std::vector<kernels::GemmOperand> b;  // [N, K]: one, or one for each group
  Tensor c = {};                        // [T, N], optional: as in kernels::Gemm, but only d itself with groups
  Tensor d;                             // [T, N]
  float factor = 1.0f;
  Accumulation accumulation = Accumulation::precise;
};
void multiply(const Scope& scope, const AlongRows& op);

// wgrad:  d = a · bᵀ (+ d)
struct AlongTokens {
  kernels::GemmOperand a, b;  // [M, T] and [N, T]
  std::vector<Tensor> d;      // [M, N]: one, or one for each group
  bool accumulate = false;    // adds to d
  Accumulation accumulation = Accumulation::precise;
};
void multiply(const Scope& scope, const AlongTokens& op);

}  // namespace octet::nn
