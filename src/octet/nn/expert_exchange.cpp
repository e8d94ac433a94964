#include "octet/nn/expert_exchange.h"

#include <numeric>

namespace octet::nn {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

std::vector<std::int64_t> in_elements(std::vector<std::int64_t> rows, std::int64_t width) {
  for (std::int64_t& count : rows) count *= width;
  return rows;
}

void copy_rows(const Scope& scope, const Tensor& from, std::int64_t first, const Tensor& to, std::int64_t at,
               std::int64_t count) {
  if (count == 0) return;
  const Tensor part = from.slice_rows(first, first + count);
  scope.stream.copy(to.slice_rows(at, at + count).data, part.data, part.bytes());
}

// body(first row among those that arrive, first row among the experts', count) for what each rank sends to each expert: they
// arrive by rank and stand by expert.
template <class Body>
void for_parts(const ExpertRound& round, Body body) {
  std::vector<std::int64_t> next(round.rows.size());
  std::exclusive_scan(round.rows.begin(), round.rows.end(), next.begin(), std::int64_t{0});
  std::int64_t at = 0;
  for (const std::vector<std::int64_t>& part : round.parts) {
    for (std::size_t e = 0; e < part.size(); ++e) {
      body(at, next[e], part[e]);
      at += part[e];
      next[e] += part[e];
    }
  }
}

// Whether this rank's rows all go at once: they then stand as they leave, for ranks stand in their order, and as they come back.
bool goes_whole(const ExpertRound& round, const Tensor& rows) { return sum(round.sent) == rows.rows(); }

// body(first row among those that leave, first row among this rank's, count) for each rank.
template <class Body>
void for_ranks(const ExpertRound& round, Body body) {
  std::int64_t at = 0;
  for (std::size_t other = 0; other < round.sent.size(); ++other) {
    body(at, round.first[other], round.sent[other]);
    at += round.sent[other];
  }
}

}  // namespace

void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received) {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t width = rows.cols();
  const bool whole = goes_whole(round, rows);
  const Tensor leaving = whole ? rows : allocate(scope.scratch, rows.dtype, {sum(round.sent), width});
  const Tensor arriving = allocate(scope.scratch, rows.dtype, {sum(round.received), width});
  if (!whole) {
    for_ranks(round, [&](std::int64_t at, std::int64_t first, std::int64_t count) {
      copy_rows(scope, rows, first, leaving, at, count);
    });
  }
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.sent, width), .received = in_elements(round.received, width)});
  for_parts(round, [&](std::int64_t at, std::int64_t place, std::int64_t count) {
    copy_rows(scope, arriving, at, received, place, count);
  });
  fill_up(scope, round, received);
}

void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows) {
  const ArenaScope temporaries(scope.scratch);
  const std::int64_t width = rows.cols();
  const bool whole = goes_whole(round, rows);
  const Tensor leaving = allocate(scope.scratch, rows.dtype, {sum(round.received), width});
  const Tensor arriving = whole ? rows : allocate(scope.scratch, rows.dtype, {sum(round.sent), width});
  for_parts(round,
            [&](std::int64_t at, std::int64_t place, std::int64_t count) { copy_rows(scope, made, place, leaving, at, count); });
  scope.expert.all_to_all(
      scope.stream, scope.scratch,
      {.x = leaving, .y = arriving, .sent = in_elements(round.received, width), .received = in_elements(round.sent, width)});
  if (whole) return;
  for_ranks(round,
            [&](std::int64_t at, std::int64_t first, std::int64_t count) { copy_rows(scope, arriving, at, rows, first, count); });
}

void fill_up(const Scope& scope, const ExpertRound& round, const Tensor& received) {
  std::int64_t end = 0;
  for (std::size_t e = 0; e < round.rows.size(); ++e) {
    end += round.rows[e];
    std::int64_t empty = round.rows[e];
    for (const std::vector<std::int64_t>& part : round.parts) empty -= part[e];
    if (empty <= 0) continue;
    const Tensor fill = received.slice_rows(end - empty, end);
    scope.stream.zero(fill.data, fill.bytes());
  }
}

}  // namespace octet::nn
