// Sequence parallelism on the tensor axis (Korthikanti et al., Reducing Activation Recomputation, 2022). The residual stream, the
// norms and their gradients are [T / t, D] on each of the t ranks of scope.tensor: rank r has tokens [r T / t, (r + 1) T / t) of
// those that this rank of the context axis has. Linears multiply all T tokens. One whose weight is cut by rows
// (parallel/tensor_cut.h) gathers X before fprop (nn/quantizer.h), and gX is a partial sum, which is scattered. One whose weight
// is cut by columns gathers G before dgrad, and Y is a partial sum. With one rank nothing here costs anything.
#pragma once

#include "octet/nn/linear.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// Returns the number of tokens of a rank's share of `tokens`, which must divide them.
std::int64_t share_of_tokens(const Scope& scope, std::int64_t tokens);

// Returns x [T / t, C] of all ranks as [T, C] in `arena`, or x itself on one rank.
Tensor gather_tokens(const Scope& scope, Arena& arena, const Tensor& x);

// y [T / t, C] = this rank's share of the sum over the ranks of their products [T, C], plus `residual` [T / t, C] (optional). The
// sum is taken in y's dtype:
//     const PartialSum sum(scope, residual, y);
//     linear.fprop(scope, x, sum.c, sum.d);
//     sum.finish(scope);
// On one rank the product itself adds the residual and writes y. The products lie in scope.scratch until the caller releases it.
struct PartialSum {
  Tensor c, d;

  PartialSum(const Scope& scope, const Tensor& residual, const Tensor& y);
  void finish(const Scope& scope) const;

 private:
  Tensor residual_, y_;
};

// A linear with its bias and with what the ranks exchange, as the cut of its weight asks. X and G are as their producers left
// them. Overwrites y with x Wᵀ + residual (optional) + b: [T, out], or this rank's share [T / t, out] if W is cut by columns.
// Returns what wgrad will read of x, which lies in scope.stash.
Operand linear_forward(const Scope& scope, const Linear& linear, const Operand& x, Reads reads, const Tensor& residual,
                       const Tensor& y);
// Overwrites gx with g W: [T, in], or this rank's share [T / t, in] if W is cut by rows. Adds to the gradients of weight and
// bias. `x` is what linear_forward() returned.
void linear_backward(const Scope& scope, const Linear& linear, const Operand& g, const Operand& x, const Tensor& gx);

}  // namespace octet::nn
