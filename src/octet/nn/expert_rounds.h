// The rows of tokens that the ranks of an expert group exchange. Every rank knows how many rows each rank has for each expert.
// Experts are dealt out to the ranks in runs, and a rank's rows are in the order of the experts, so they go out in runs too. A
// rank that has more than `quota` rows for another sends them in several rounds: all arrive, through memory that was planned for
// one round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::nn {

// One rank's part of one round.
struct ExpertRound {
  std::vector<std::int64_t> first;           // [ranks] of this rank's rows, the first that goes to each rank
  std::vector<std::int64_t> sent, received;  // [ranks] rows to and from each
  bool whole = true;                         // the only round: this rank's rows leave as they stand
  std::vector<std::int32_t> counts;          // [own experts] rows received from all ranks
  std::vector<std::int32_t> places;          // of each row that arrives, by rank and expert: its row among those of the experts
};

// `counts` [ranks, E]: rows that each rank has for each expert; E is a multiple of the ranks. At least one round, the same number
// on all ranks.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t quota);

// A round that nobody has counted, for the meta device: each rank's `rows`, dealt out evenly to the `experts` of each. It has no
// places, because the meta device puts no row anywhere.
ExpertRound even_round(std::int64_t rows, int ranks, std::int64_t experts);

}  // namespace octet::nn
