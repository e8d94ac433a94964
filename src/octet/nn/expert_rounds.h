// Sends rows of tokens to the ranks of scope.expert that hold their experts, and back. Every rank knows how many rows each rank
// has for each expert. Experts are shared out to the ranks in runs, and a rank's rows are in the order of the experts, so they go
// out in runs too. In a round a rank sends another one at most `capacity` rows. Further rows go in further rounds, through memory
// that was planned for one; none is dropped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/kernels/experts/experts.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// One rank's part of one round. D is the model's dim, S the number of this rank's rows, R = groups.rows() what the experts of
// this rank have room for, and A the rows that a round can bring.
struct ExpertRound {
  std::vector<std::int64_t> first;           // [ranks] of this rank's rows, the first that goes to each rank
  std::vector<std::int64_t> sent, received;  // [ranks] rows to and from each
  bool whole = true;                         // the only round: this rank's rows leave as they stand
  std::vector<std::int32_t> counts;          // [own experts] rows received from all ranks
  std::vector<std::int32_t> places;          // of each row that arrives, by rank and expert: its row among those of the experts
  // The caller sets these two.
  RowGroups groups = {};      // [R] rows of this rank's experts
  Tensor device_places = {};  // [A, 1] I32: room for `places`
};

// `counts` [ranks, E]: rows that each rank has for each expert; E is a multiple of the ranks. At least one round, the same number
// on all ranks.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t capacity);

// A round that nobody has counted, for the meta device: each rank's `rows`, shared out evenly to the `experts` of each. It has no
// places, because the meta device puts no row anywhere.
ExpertRound even_round(std::int64_t rows, int ranks, std::int64_t experts);

// Overwrites rows.amax [E] with each expert's scale under the current scaling `spec`, made of the largest magnitude that any rank
// sends to it. All ranks of scope.expert call it together.
void scale_rows(const Scope& scope, const kernels::ExpertAmax& rows, QuantSpec spec);

// Overwrites `received` [R, D] with what this round brings of the rows [S, D] of all ranks, and with zeros behind the rows of
// each expert.
void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received);
// Sends the results back: overwrites the rows of this round, in every rank's `rows` [S, D], with the corresponding rows of `made`
// [R, D].
void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows);

}  // namespace octet::nn
