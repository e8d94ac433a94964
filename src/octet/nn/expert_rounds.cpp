#include "octet/nn/expert_rounds.h"

#include <algorithm>
#include <numeric>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/kernels/quantize/shard.h"

namespace octet::nn {
namespace {

// Returns how many rows of each of the runs `counts` lie in the part [begin, end) of all runs together.
std::vector<std::int64_t> cut_runs(std::span<const std::int32_t> counts, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> result;
  std::int64_t at = 0;
  for (const std::int32_t count : counts) {
    const std::int64_t from = std::max(at, begin), to = std::min(at + count, end);
    result.push_back(std::max<std::int64_t>(0, to - from));
    at += count;
  }
  return result;
}

// Computes the rows of arriving tokens, which come ordered by rank and by expert: `parts` [ranks][experts] are their numbers.
// Among the rows of an expert, they are ordered by rank.
void place_rows(ExpertRound& round, const std::vector<std::vector<std::int64_t>>& parts) {
  round.counts.assign(parts.front().size(), 0);
  for (const std::vector<std::int64_t>& part : parts) {
    for (std::size_t e = 0; e < part.size(); ++e) round.counts[e] += static_cast<std::int32_t>(part[e]);
  }
  std::vector<std::int64_t> next;
  for (const GroupExtent& part : extents_of(round.counts)) next.push_back(part.first);
  for (const std::vector<std::int64_t>& part : parts) {
    for (std::size_t e = 0; e < part.size(); ++e) {
      for (std::int64_t i = 0; i < part[e]; ++i) round.places.push_back(static_cast<std::int32_t>(next[e]++));
    }
  }
}

std::int64_t sum(const auto& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

std::vector<std::int64_t> in_elements(std::vector<std::int64_t> rows, std::int64_t width) {
  for (std::int64_t& count : rows) count *= width;
  return rows;
}

// Calls copy(stretch of this rank's rows, its place among the rows that travel) for each rank with which a round exchanges
// rows.
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

std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t capacity) {
  const auto n = static_cast<std::size_t>(ranks), self = static_cast<std::size_t>(rank), experts = counts.size() / n;
  require(experts * n == counts.size() && experts % n == 0 && capacity > 0, counts.size(), " counts of ", ranks, " ranks");
  const std::size_t own = experts / n;
  // How many rows rank `from` has for each expert of rank `to`.
  const auto of_pair = [&](std::size_t from, std::size_t to) { return counts.subspan(from * experts + to * own, own); };

  std::int64_t largest = 1;
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) largest = std::max(largest, sum(of_pair(from, to)));
  }
  std::vector<ExpertRound> rounds(static_cast<std::size_t>(ceil_div(largest, capacity)));
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    ExpertRound& round = rounds[r];
    const std::int64_t begin = static_cast<std::int64_t>(r) * capacity;
    std::int64_t at = 0;
    round.whole = rounds.size() == 1;
    std::vector<std::vector<std::int64_t>> parts;
    for (std::size_t other = 0; other < n; ++other) {
      const std::int64_t to_other = sum(of_pair(self, other)), from_other = sum(of_pair(other, self));
      round.first.push_back(at + std::min(begin, to_other));
      round.sent.push_back(std::clamp<std::int64_t>(to_other - begin, 0, capacity));
      round.received.push_back(std::clamp<std::int64_t>(from_other - begin, 0, capacity));
      parts.push_back(cut_runs(of_pair(other, self), begin, begin + capacity));
      at += to_other;
    }
    place_rows(round, parts);
  }
  return rounds;
}

ExpertRound even_round(std::int64_t rows, int ranks, int rank, std::int64_t experts) {
  const auto n = static_cast<std::size_t>(ranks), own = static_cast<std::size_t>(experts);
  const std::int64_t each = ceil_div(rows, std::int64_t{ranks});
  ExpertRound round;
  for (std::int64_t left = rows; round.sent.size() < n; left -= round.sent.back()) {
    round.first.push_back(rows - left);
    round.sent.push_back(std::min(each, left));
  }
  round.received.assign(n, each);
  round.received[static_cast<std::size_t>(rank)] = round.sent[static_cast<std::size_t>(rank)];
  round.counts.assign(own, static_cast<std::int32_t>(each / experts) * ranks);
  for (std::size_t e = 0; e < static_cast<std::size_t>(each % experts); ++e) round.counts[e] += ranks;
  return round;
}

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

void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received) {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t width = rows.cols(), arrive = sum(round.received);
  const Tensor leaving = round.whole ? rows : allocate(scope.scratch, rows.dtype, rows.shape).slice_rows(0, sum(round.sent));
  const Tensor arriving = allocate(scope.scratch, rows.dtype, {round.device_places.rows(), width}).slice_rows(0, arrive);
  if (!round.whole) {
    for_stretches(round, rows, leaving,
                  [&](const Tensor& own, const Tensor& sent) { scope.stream.copy(sent.data, own.data, own.bytes()); });
  }
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.sent, width), .received = in_elements(round.received, width)});
  if (arrive > 0) {
    kernels::expert_scatter(scope.stream, {.x = arriving, .rows = round.device_places.slice_rows(0, arrive), .y = received});
  }
  kernels::clear_gaps(scope.stream, {round.groups, received});
}

void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows) {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t width = rows.cols(), leave = sum(round.received);
  const Tensor leaving = allocate(scope.scratch, rows.dtype, {round.device_places.rows(), width}).slice_rows(0, leave);
  const Tensor arriving = round.whole ? rows : allocate(scope.scratch, rows.dtype, rows.shape).slice_rows(0, sum(round.sent));
  if (leave > 0) {
    kernels::expert_combine(scope.stream, {.x = made, .rows = round.device_places.slice_rows(0, leave), .y = leaving});
  }
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.received, width), .received = in_elements(round.sent, width)});
  if (round.whole) return;
  for_stretches(round, rows, arriving,
                [&](const Tensor& own, const Tensor& back) { scope.stream.copy(own.data, back.data, back.bytes()); });
}

}  // namespace octet::nn
