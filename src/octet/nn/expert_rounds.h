// The rows of tokens that the ranks of an expert group exchange. Every rank knows how many rows each rank has for each expert.
// Experts are dealt out to the ranks in runs, and a rank's rows are in the order of the experts, so they go out in runs too. A
// rank that has more than `quota` rows for another sends them in several rounds: all arrive, through memory that was planned for
// one round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::nn {

// Rows of an expert are rounded up to a multiple of this: the tile of products and of scales along tokens, so that the memory of
// rows depends on how many there are alone, not on how they are shared out to experts.
inline constexpr std::int64_t kExpertRows = 128;

// One rank's part of one round.
struct ExpertRound {
  std::vector<std::int64_t> first;               // [ranks] of this rank's rows, the first that goes to each rank
  std::vector<std::int64_t> sent, received;      // [ranks] rows to and from each
  std::vector<std::vector<std::int64_t>> parts;  // [ranks][own experts] of what is received, rows for each expert
  std::vector<std::int64_t> rows;                // [own experts] received from all, rounded up

  std::int64_t total() const;  // of `rows`
};

// `counts` [ranks, E]: rows that each rank has for each expert; E is a multiple of the ranks. At least one round, the same number
// on all ranks.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t quota);

// Rounds that nobody has counted, for the meta device: `rows` from every rank, dealt out evenly to `experts`; and the most that a
// round may hold, with as much for one expert as there can be.
ExpertRound even_round(std::int64_t rows, int ranks, std::int64_t experts);
ExpertRound fullest_round(std::int64_t rows, std::int64_t rows_of_one, int ranks, std::int64_t experts);

}  // namespace octet::nn
