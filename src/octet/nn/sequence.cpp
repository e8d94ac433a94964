#include "octet/nn/sequence.h"

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::nn {

std::int64_t share_of_tokens(const Scope& scope, std::int64_t tokens) {
  const int ranks = scope.tensor.size();
  require(tokens % ranks == 0, tokens, " tokens cannot be shared out to the ", ranks, " ranks of the tensor axis");
  return tokens / ranks;
}

Tensor gather_tokens(const Scope& scope, Arena& arena, const Tensor& x) {
  if (scope.tensor.size() == 1) return x;
  const Tensor all = allocate(arena, x.dtype, {scope.tensor.size() * x.rows(), x.cols()});
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = x, .y = all});
  return all;
}

PartialSum::PartialSum(const Scope& scope, const Tensor& residual, const Tensor& y)
    : c(residual), d(y), residual_(residual), y_(y) {
  if (scope.tensor.size() == 1) return;
  c = {};
  d = allocate(scope.scratch, y.dtype, {scope.tensor.size() * y.rows(), y.cols()});
}

void PartialSum::finish(const Scope& scope) const {
  if (scope.tensor.size() == 1) return;
  scope.tensor.reduce_scatter(scope.stream, scope.scratch, {.x = d, .y = y_});
  if (residual_) kernels::add(scope.stream, {.x = residual_, .y = y_});
}

Operand linear_forward(const Scope& scope, const Linear& linear, const Operand& input, Reads reads, const Tensor& residual,
                       const Tensor& y) {
  const ArenaScope temporaries(scope.scratch);
  const Operand x = linear.complete_input(scope, input, reads);
  if (linear.weight().spec.cut.along == parallel::Cut::columns) {
    const PartialSum sum(scope, residual, y);
    linear.fprop(scope, x, sum.c, sum.d);
    sum.finish(scope);
  } else {
    linear.fprop(scope, x, residual, y);
  }
  linear.add_bias(scope, y);
  return reads == Reads::fprop ? Operand{} : linear.x().for_wgrad(x);
}

void linear_backward(const Scope& scope, const Linear& linear, const Operand& produced, const Operand& x, const Tensor& gx) {
  const ArenaScope temporaries(scope.scratch);
  const Operand g = linear.complete_gradient(scope, produced);
  if (linear.weight().spec.cut.along == parallel::Cut::rows) {
    const ArenaScope of_sum(scope.scratch);
    const PartialSum sum(scope, {}, gx);
    linear.dgrad(scope, g, sum.d);
    sum.finish(scope);
  } else {
    linear.dgrad(scope, g, gx);
  }
  linear.wgrad(scope, g, x);
}

}  // namespace octet::nn
