#include "octet/nn/expert_rounds.h"

#include <algorithm>
#include <numeric>

#include "octet/base/math.h"
#include "octet/base/require.h"

namespace octet::nn {
namespace {

// The part [begin, end) of a run of rows that is made of runs of `counts`: how many of each.
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

}  // namespace

std::int64_t ExpertRound::total() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t quota) {
  const auto n = static_cast<std::size_t>(ranks), self = static_cast<std::size_t>(rank), experts = counts.size() / n;
  require(experts * n == counts.size() && experts % n == 0 && quota > 0, counts.size(), " counts of ", ranks, " ranks");
  const std::size_t own = experts / n;
  // Of a rank's rows, those for the experts of another.
  const auto of_pair = [&](std::size_t from, std::size_t to) { return counts.subspan(from * experts + to * own, own); };
  const auto sum = [](std::span<const std::int32_t> x) { return std::accumulate(x.begin(), x.end(), std::int64_t{0}); };

  std::int64_t largest = 1;
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) largest = std::max(largest, sum(of_pair(from, to)));
  }
  std::vector<ExpertRound> rounds(static_cast<std::size_t>(ceil_div(largest, quota)));
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    ExpertRound& round = rounds[r];
    const std::int64_t begin = static_cast<std::int64_t>(r) * quota;
    std::int64_t at = 0;
    round.rows.assign(own, 0);
    for (std::size_t other = 0; other < n; ++other) {
      const std::int64_t to_other = sum(of_pair(self, other)), from_other = sum(of_pair(other, self));
      round.first.push_back(at + std::min(begin, to_other));
      round.sent.push_back(std::clamp<std::int64_t>(to_other - begin, 0, quota));
      round.received.push_back(std::clamp<std::int64_t>(from_other - begin, 0, quota));
      round.parts.push_back(cut_runs(of_pair(other, self), begin, begin + quota));
      for (std::size_t e = 0; e < own; ++e) round.rows[e] += round.parts.back()[e];
      at += to_other;
    }
    for (std::int64_t& rows : round.rows) rows = round_up(rows, kExpertRows);
  }
  return rounds;
}

ExpertRound even_round(std::int64_t rows, int ranks, std::int64_t experts) {
  const auto n = static_cast<std::size_t>(ranks);
  ExpertRound round;
  round.first.assign(n, 0);
  round.sent.assign(n, rows);
  round.received.assign(n, rows);
  round.parts.assign(n, std::vector<std::int64_t>(static_cast<std::size_t>(experts), rows / experts));
  round.rows.assign(static_cast<std::size_t>(experts), round_up(ceil_div(ranks * rows, experts), kExpertRows));
  return round;
}

ExpertRound fullest_round(std::int64_t rows, std::int64_t rows_of_one, int ranks, std::int64_t experts) {
  ExpertRound round = even_round(rows, ranks, experts);
  std::int64_t tiles = (ranks * rows + experts * (kExpertRows - 1)) / kExpertRows;
  const std::int64_t most = ceil_div(std::min(rows, rows_of_one) * ranks, kExpertRows);
  std::int64_t left = rows;  // of each rank's
  for (std::size_t e = 0; e < round.rows.size(); ++e) {
    const std::int64_t here = std::min(tiles, most), part = std::min(left, here * kExpertRows / ranks);
    round.rows[e] = here * kExpertRows;
    for (std::vector<std::int64_t>& parts : round.parts) parts[e] = part;
    tiles -= here;
    left -= part;
  }
  return round;
}

}  // namespace octet::nn
