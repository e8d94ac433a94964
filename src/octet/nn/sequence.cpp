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

}  // namespace octet::nn
