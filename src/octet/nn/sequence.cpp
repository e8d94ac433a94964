#include "octet/nn/sequence.h"

#include <utility>

#include "octet/base/math.h"
#include "octet/kernels/elementwise/elementwise.h"

namespace octet::nn {
namespace {

using Rows = IndexRange<std::int64_t>;  // of tokens

// Returns the share of the rank that is `distance` ranks after this one.
Rows share_at(const Scope& scope, std::int64_t tokens, int distance) {
  const std::int64_t share = share_of_tokens(scope, tokens);
  const int ranks = scope.tensor.size(), rank = (scope.tensor.rank() + distance + ranks) % ranks;
  return {rank * share, (rank + 1) * share};
}

Tensor slice(const Tensor& x, Rows rows) { return x ? x.slice_rows(rows.begin, rows.end) : x; }

// Returns what fprop or dgrad reads of these tokens: codes if there are any. The values beside them may be only a share.
Operand slice(const Operand& x, Rows rows) {
  Operand part{
      .values = x.codes.rowwise ? Tensor{} : slice(x.values, rows), .low_rank = slice(x.low_rank, rows), .codes = x.codes};
  part.codes.rowwise = slice(x.codes.rowwise, rows);
  if (x.codes.tile == ScaleTile::row) part.codes.rowwise_scale_inv = slice(x.codes.rowwise_scale_inv, rows);
  part.codes.columnwise = part.codes.columnwise_scale_inv = {};
  return part;
}

// Whether each share of the tokens can be multiplied alone. A watch wants to see whole products.
bool can_slice(const Scope& scope, const Operand& x, std::int64_t tokens) {
  constexpr std::int64_t kAlignment = 16;
  const bool in_shares = !x.codes.rowwise || x.codes.tile == ScaleTile::tensor || x.codes.tile == ScaleTile::row;
  return in_shares && !scope.watch && share_of_tokens(scope, tokens) % kAlignment == 0;
}

// Multiplies this rank's tokens first, and those of each other rank when they have arrived. multiply(operand, rows) overwrites
// these rows of the product.
template <class Multiply>
void multiply_as_they_arrive(const Scope& scope, const Quantizer& quantizer, Operand& x, std::int64_t tokens,
                             const Multiply& multiply) {
  const bool in_shares = x.arrival && can_slice(scope, x, tokens);
  for (int distance = 0; in_shares && distance < scope.tensor.size(); ++distance) {
    if (distance > 0) scope.stream.wait_for_ranks(*x.arrival->received[static_cast<std::size_t>(distance) - 1]);
    const Rows rows = share_at(scope, tokens, distance);
    multiply(slice(x, rows), rows);
  }
  quantizer.finish(scope, x);
  if (!in_shares) multiply(x, Rows{0, tokens});
  Quantizer::release(scope, x);
}

// Makes the stream of exchanges wait for what all ranks have computed so far.
Stream& begin_exchange(const Scope& scope) {
  Stream& stream = scope.stream_of(parallel::StreamId::tensor);
  stream.wait(*scope.stream.record());
  scope.tensor.fence(stream);
  return stream;
}

std::unique_ptr<const Event> end_exchange(const Scope& scope) {
  Stream& stream = scope.stream_of(parallel::StreamId::tensor);
  scope.tensor.fence(stream);
  return stream.record();
}

}  // namespace

std::int64_t share_of_tokens(const Scope& scope, std::int64_t tokens) {
  const int ranks = scope.tensor.size();
  require(tokens % ranks == 0, tokens, " tokens cannot be shared out to the ", ranks, " ranks of the tensor axis");
  return tokens / ranks;
}

Tensor own_share(const Scope& scope, const Tensor& x) {
  const Rows rows = share_at(scope, x.rows(), 0);
  return x.slice_rows(rows.begin, rows.end);
}

Tensor gather_tokens(const Scope& scope, Arena& arena, const Tensor& x) {
  if (scope.tensor.size() == 1) return x;
  const Tensor all = allocate(arena, x.dtype, {scope.tensor.size() * x.rows(), x.cols()});
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = x, .y = all});
  return all;
}

std::shared_ptr<const Arrival> fetch_shares(const Scope& scope, const Tensor& all, const Tensor& x) {
  Stream& stream = begin_exchange(scope);
  auto arrival = std::make_shared<Arrival>();
  for (int distance = 1; distance < scope.tensor.size(); ++distance) {
    const Tensor y = slice(all, share_at(scope, all.rows(), distance));
    const int rank = (scope.tensor.rank() + distance) % scope.tensor.size();
    scope.tensor.fetch(stream, {.x = x ? x : y, .y = y, .from = rank});
    arrival->received.push_back(stream.record());
  }
  arrival->sent = end_exchange(scope);
  return arrival;
}

// Ranks read each other's tokens where these lie, or in their places among all tokens.
void fetch_tokens(const Scope& scope, Arena& arena, Operand& x) {
  const Tensor share = x.values, all = allocate(arena, share.dtype, {scope.tensor.size() * share.rows(), share.cols()});
  const bool in_place = scope.tensor.reaches(all);
  x.values = all;
  if (!in_place && !scope.tensor.reaches(share)) {
    return scope.tensor.all_gather(scope.stream, scope.scratch, {.x = share, .y = all});
  }
  const Tensor own = own_share(scope, all);
  scope.stream.copy(own.data, share.data, share.bytes());
  x.arrival = fetch_shares(scope, all, in_place ? Tensor{} : share);
}

PartialSum::PartialSum(const Scope& scope, const Tensor& residual, const Tensor& y)
    : c(residual), d(y), residual_(residual), y_(y) {
  const int ranks = scope.tensor.size();
  if (ranks == 1) return;
  c = {};
  d = allocate(scope.scratch, y.dtype, {ranks * y.rows(), y.cols()});
  if (ranks > static_cast<int>(kernels::kMostParts)) return;
  // Also if the group does not reach the products, because no group reaches memory on the meta device, which plans this.
  arriving_ = allocate(scope.scratch, y.dtype, {(ranks - 1) * y.rows(), y.cols()});
  hides_ = scope.tensor.reaches(d);
}

void PartialSum::start(const Scope& scope) {
  if (started_ || scope.tensor.size() == 1) return;
  if (hides_) return start(scope, 1, scope.tensor.size() - 1);
  started_ = true;
  scope.tensor.reduce_scatter(scope.stream, scope.scratch, {.x = d, .y = y_});
}

void PartialSum::start(const Scope& scope, int first, int last) {
  started_ = true;
  Stream& stream = begin_exchange(scope);
  const Tensor own = own_share(scope, d);
  for (int distance = first; distance <= last; ++distance) {
    const Tensor y = arriving_.slice_rows((distance - 1) * own.rows(), distance * own.rows());
    scope.tensor.fetch(stream, {.x = own, .y = y, .from = (scope.tensor.rank() + distance) % scope.tensor.size()});
  }
  if (last < scope.tensor.size() - 1) return;
  arrival_.received.push_back(stream.record());
  arrival_.sent = end_exchange(scope);
}

void PartialSum::finish(const Scope& scope) {
  start(scope);
  const int ranks = scope.tensor.size();
  if (ranks == 1) return;
  if (!hides_) {
    if (residual_) kernels::add(scope.stream, {.x = residual_, .y = y_});
    return;
  }
  kernels::SumParts sum{.residual = residual_, .y = y_};
  for (int rank = 0; rank < ranks; ++rank) {
    const int distance = (rank - scope.tensor.rank() + ranks) % ranks;
    sum.parts.push_back(distance == 0 ? own_share(scope, d)
                                      : arriving_.slice_rows((distance - 1) * y_.rows(), distance * y_.rows()));
  }
  scope.stream.wait_for_ranks(*arrival_.received.back());
  kernels::sum_parts(scope.stream, sum);
  scope.stream.wait_for_ranks(*arrival_.sent);
}

Operand linear_forward(const Scope& scope, const Linear& linear, const Operand& input, Reads reads, const Tensor& residual,
                       const Tensor& y) {
  const ArenaScope temporaries(scope.scratch);
  Operand x = linear.start_input(scope, input, reads);
  if (linear.cut() == parallel::Cut::columns) {
    PartialSum sum(scope, residual, y);
    const std::int64_t tokens = sum.d.rows();
    if (sum.hides() && can_slice(scope, x, tokens)) {
      const auto multiply = [&](Rows rows) { linear.fprop(scope, slice(x, rows), {}, slice(sum.d, rows)); };
      for (int distance = 1; distance < scope.tensor.size(); ++distance) {
        multiply(share_at(scope, tokens, -distance));
        sum.start(scope, distance, distance);
      }
      multiply(share_at(scope, tokens, 0));
    } else {
      linear.fprop(scope, x, sum.c, sum.d);
    }
    sum.finish(scope);
  } else {
    multiply_as_they_arrive(scope, linear.x(), x, y.rows(), [&](const Operand& part, Rows rows) {
      linear.fprop(scope, part, slice(residual, rows), slice(y, rows));
    });
  }
  linear.add_bias(scope, y);
  return reads == Reads::fprop ? Operand{} : linear.x().for_wgrad(x);
}

Operand linear_dgrad(const Scope& scope, const Linear& linear, const Operand& produced, const Tensor& gx) {
  Operand g = linear.start_gradient(scope, produced);
  const ArenaScope temporaries(scope.scratch);
  const Linear::Weights w = linear.dgrad_weights(scope);
  multiply_as_they_arrive(scope, linear.g(), g, gx.rows(),
                          [&](const Operand& part, Rows rows) { linear.dgrad(scope, part, w, slice(gx, rows)); });
  return g;
}

void linear_backward(const Scope& scope, const Linear& linear, const Operand& produced, const Operand& x, const Tensor& gx) {
  const ArenaScope temporaries(scope.scratch);
  if (linear.cut() != parallel::Cut::rows) {
    return linear.wgrad(scope, linear_dgrad(scope, linear, produced, gx), x);
  }
  const Operand g = linear.start_gradient(scope, produced);  // nothing is on its way: this rank has G of all tokens
  PartialSum sum(scope, {}, gx);
  {
    const ArenaScope codes(scope.scratch);
    linear.dgrad(scope, g, linear.dgrad_weights(scope), sum.d);
  }
  sum.start(scope);
  linear.wgrad(scope, g, x);
  sum.finish(scope);
}

}  // namespace octet::nn
