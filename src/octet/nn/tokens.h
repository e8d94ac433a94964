// Between a rank's share of the tokens and all of them: the edges of the layers that the tensor axis cuts (Korthikanti et al.,
// Reducing Activation Recomputation, 2022). Residual stream, norms and their gradients are [T / t, D] on each of the t ranks of
// scope.tensor, rank r holding tokens [r T / t, (r + 1) T / t) of what this rank of the context axis holds; linears multiply all
// T. One rank has all tokens, and nothing here costs it anything.
#pragma once

#include "octet/nn/scope.h"

namespace octet::nn {

// A rank's share of T tokens. Refused where they cannot be shared out.
std::int64_t share_of_tokens(const Scope& scope, std::int64_t tokens);

// [T, C] of all ranks' x [T / t, C], in `arena`; x itself on one rank.
Tensor gather_tokens(const Scope& scope, Arena& arena, const Tensor& x);

// y [T / t, C] = this rank's share of the sum over the ranks of their products [T, C], plus `residual` [T / t, C] (optional). The
// sum is taken in y's dtype:
//     const PartialSum sum(scope, residual, y);
//     ... product of A and B, C = sum.c, D = sum.d
//     sum.finish(scope);
// On one rank the product adds the residual and writes y. Takes scratch of the caller's.
struct PartialSum {
  Tensor c, d;

  PartialSum(const Scope& scope, const Tensor& residual, const Tensor& y);
  // Of a y that is no sum over ranks.
  static PartialSum none(const Tensor& residual, const Tensor& y) { return {residual, y}; }
  void finish(const Scope& scope) const;

 private:
  PartialSum(const Tensor& residual, const Tensor& y) : c(residual), d(y), residual_(residual), y_(y) {}
  Tensor residual_, y_;
};

}  // namespace octet::nn
