// Sequence parallelism on the tensor axis (Korthikanti et al., Reducing Activation Recomputation, 2022). The residual stream, the
// norms and their gradients are [T / t, D] on each of the t ranks of scope.tensor: rank r has tokens [r T / t, (r + 1) T / t) of
// the T tokens of its coordinate on the context axis. Linears multiply all T tokens. A linear whose weight is cut by rows
// (parallel/tensor_cut.h) gathers X before fprop (nn/quantizer.h), and its gX is a partial sum, which is scattered. A linear
// whose weight is cut by columns gathers G before dgrad, and its Y is a partial sum. With one rank, nothing here costs
// anything.
//
// If ranks can read each other's scope.scratch directly (comm::Group::reaches), copy engines exchange tokens on
// StreamId::tensor, rank by rank, and products hide the exchange. A rank multiplies its own tokens first, and those of another
// rank when they have arrived. Where products are sent, the product of its own tokens comes last. Otherwise collectives
// exchange everything on scope.stream. Products, and sums over ranks on the CPU, have the same bits either way, except FP32
// products of a BLAS, which may depend on the number of rows.
#pragma once

#include "octet/nn/linear.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// Returns the number of tokens of a rank's share of `tokens`, which must divide them.
std::int64_t share_of_tokens(const Scope& scope, std::int64_t tokens);

// Returns this rank's share of the rows of x, which has a row for each token.
Tensor own_share(const Scope& scope, const Tensor& x);

// Returns x [T / t, C] of all ranks as [T, C] in `arena`, or x itself on one rank.
Tensor gather_tokens(const Scope& scope, Arena& arena, const Tensor& x);

// Replaces the values of x, this rank's share [T / t, C], by those of all tokens [T, C], in `arena`. If the group reaches the
// values, the other ranks' tokens arrive later (x.arrival). For several ranks only.
void fetch_tokens(const Scope& scope, Arena& arena, Operand& x);
// Fetches the other ranks' shares of `all` [T, C] to their places: from x of these ranks if it is given, otherwise from the same
// places. The group must reach them.
std::shared_ptr<const Arrival> fetch_shares(const Scope& scope, const Tensor& all, const Tensor& x = {});

// y [T / t, C] = this rank's share of the sum over the ranks of their products [T, C], plus `residual` [T / t, C] (optional). The
// sum is taken in y's dtype:
//     PartialSum sum(scope, residual, y);
//     linear.fprop(scope, x, sum.c, sum.d);
//     sum.start(scope);
//     ... what need not wait for the sum ...
//     sum.finish(scope);
// On one rank the product itself adds the residual and writes y. The products lie in scope.scratch until the caller releases it.
class PartialSum {
 public:
  Tensor c, d;

  PartialSum(const Scope& scope, const Tensor& residual, const Tensor& y);
  // Whether copy engines exchange the products.
  bool hides() const { return hides_; }
  // Starts the exchange of the ranks' products. All products must have been written.
  void start(const Scope& scope);
  // With hides(): copies this rank's share of the products of the ranks r + first ... r + last (mod t), where r is this rank.
  // The calls must cover the distances 1 to t - 1 in order. Before distance d, this rank has computed the product for the
  // tokens of rank r - d.
  void start(const Scope& scope, int first, int last);
  // Overwrites y. Calls start() if it has not been called.
  void finish(const Scope& scope);

 private:
  Tensor residual_, y_, arriving_;  // arriving_: this rank's shares of the products of the ranks after it, by distance
  bool hides_ = false, started_ = false;
  Arrival arrival_;
};

// A linear with its bias and the exchanges that Linear::cut() requires. X and G are as their producers left them. Overwrites y
// with x Wᵀ + residual (optional) + b: [T, out], or this rank's share [T / t, out] if W is cut by columns. Returns the part of
// x that wgrad will read, which lies in scope.stash.
Operand linear_forward(const Scope& scope, const Linear& linear, const Operand& x, Reads reads, const Tensor& residual,
                       const Tensor& y);
// Overwrites gx with g W: [T, in], or this rank's share [T / t, in] if W is cut by rows. Overwrites the weight's gradient or adds
// to it, as Linear::wgrad(); always adds to the bias's. `x` is what linear_forward() returned.
void linear_backward(const Scope& scope, const Linear& linear, const Operand& g, const Operand& x, const Tensor& gx);
// The first half of linear_backward() for a W that is not cut by rows: overwrites gx [T, in], and returns G completed for wgrad.
Operand linear_dgrad(const Scope& scope, const Linear& linear, const Operand& g, const Tensor& gx);

}  // namespace octet::nn
