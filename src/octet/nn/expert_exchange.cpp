#include "octet/nn/expert_exchange.h"

#include <numeric>

#include "octet/kernels/quantize/shard.h"

namespace octet::nn {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

std::vector<std::int64_t> in_elements(std::vector<std::int64_t> rows, std::int64_t width) {
  for (std::int64_t& count : rows) count *= width;
  return rows;
}

// Calls copy(stretch of this rank's rows, where it lies among those that travel) for each rank that a round exchanges rows with.
template <class Copy>
void for_stretches(const ExpertRound& round, const Tensor& rows, const Tensor& travelling, Copy copy) {
  std::int64_t at = 0;
  for (std::size_t other = 0; other < round.sent.size(); ++other) {
    const std::int64_t first = round.first[other], count = round.sent[other];
    if (count > 0) copy(rows.slice_rows(first, first + count), travelling.slice_rows(at, at + count));
    at += count;
  }
}

}  // namespace

void scale_rows(const Scope& scope, const kernels::ExpertAmax& rows, QuantSpec spec) {
  const ArenaScope temporaries(scope.scratch);
  const Tensor scale_inv = allocate(scope.scratch, DType::f32, rows.amax.shape);
  kernels::expert_amax(scope.stream, rows);
  scope.expert.all_reduce(scope.stream, scope.scratch, {.x = rows.amax, .reduction = comm::Reduction::max});
  spec.tile = ScaleTile::row;  // an expert is a row of the amaxes
  kernels::scales_from_amax(scope.stream, {.amax = rows.amax,
                                           .spec = spec,
                                           .whole = {rows.amax.rows(), rows.x.cols()},
                                           .multipliers = rows.amax,
                                           .scale_inv = scale_inv});
}

void send_to_experts(const Scope& scope, const ExchangePlan& plan, const Tensor& rows, const Tensor& received) {
  const ArenaScope temporaries(scope.scratch);
  const ExpertRound& round = plan.round;
  const std::int64_t width = rows.cols(), arrive = sum(round.received);
  const Tensor leaving = round.whole ? rows : allocate(scope.scratch, rows.dtype, rows.shape).slice_rows(0, sum(round.sent));
  const Tensor arriving = allocate(scope.scratch, rows.dtype, {plan.places.rows(), width}).slice_rows(0, arrive);
  if (!round.whole) {
    for_stretches(round, rows, leaving,
                  [&](const Tensor& own, const Tensor& sent) { scope.stream.copy(sent.data, own.data, own.bytes()); });
  }
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.sent, width), .received = in_elements(round.received, width)});
  if (arrive > 0) {
    kernels::expert_scatter(scope.stream, {.x = arriving, .rows = plan.places.slice_rows(0, arrive), .y = received});
  }
  kernels::clear_gaps(scope.stream, {plan.groups, received});
}

void send_back(const Scope& scope, const ExchangePlan& plan, const Tensor& made, const Tensor& rows) {
  const ArenaScope temporaries(scope.scratch);
  const ExpertRound& round = plan.round;
  const std::int64_t width = rows.cols(), leave = sum(round.received);
  const Tensor leaving = allocate(scope.scratch, rows.dtype, {plan.places.rows(), width}).slice_rows(0, leave);
  const Tensor arriving = round.whole ? rows : allocate(scope.scratch, rows.dtype, rows.shape).slice_rows(0, sum(round.sent));
  if (leave > 0) {
    kernels::expert_combine(scope.stream, {.x = made, .rows = plan.places.slice_rows(0, leave), .y = leaving});
  }
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.received, width), .received = in_elements(round.sent, width)});
  if (round.whole) return;
  for_stretches(round, rows, arriving,
                [&](const Tensor& own, const Tensor& back) { scope.stream.copy(own.data, back.data, back.bytes()); });
}

}  // namespace octet::nn
