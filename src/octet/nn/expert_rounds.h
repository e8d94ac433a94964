// Sends rows of tokens to the ranks of scope.expert that hold their experts, and back. Every rank knows how many rows each rank
// has for each expert. Each rank holds consecutive experts, and a rank's rows are in the order of the experts, so the rows for
// a rank are consecutive, too. In a round, a rank sends at most `capacity` rows to each other rank. Further rows follow in
// further rounds, which reuse the memory planned for one round; none is dropped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octet/kernels/experts/experts.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// One rank's part of one round. D is the model's dim, S the number of this rank's rows, R = groups.rows() the number of rows
// for which the experts of this rank have room, and A the number of rows that can arrive in a round.
struct ExpertRound {
  std::vector<std::int64_t> first;           // [ranks] of this rank's rows, the first that goes to each rank
  std::vector<std::int64_t> sent, received;  // [ranks] rows to and from each
  bool whole = true;                         // whether this is the only round: this rank's rows are then sent as they lie
  std::vector<std::int32_t> counts;          // [own experts] rows received from all ranks
  std::vector<std::int32_t> places;          // for each arriving row, ordered by rank and expert: its row in `groups`
  // The caller sets these two.
  RowGroups groups = {};      // [R] rows of this rank's experts
  Tensor device_places = {};  // [A, 1] I32: room for `places`
};

// Returns at least one round, the same number on all ranks. `counts` [ranks, E] are the rows that each rank has for each
// expert; E is a multiple of the number of ranks.
std::vector<ExpertRound> expert_rounds(std::span<const std::int32_t> counts, int ranks, int rank, std::int64_t capacity);

// Returns rank `rank`'s part of a round with assumed counts, for the meta device: each rank sends `rows` rows, spread evenly over
// all ranks and their `experts` experts. The last ranks get fewer if `rows` is no multiple of `ranks`; they are assumed to
// receive as many as the others, except from themselves. The round has no places, because the meta device places no rows.
ExpertRound even_round(std::int64_t rows, int ranks, int rank, std::int64_t experts);

// Overwrites rows.amax [E] with each expert's scale under the current scaling `spec`, computed from the largest magnitude that
// any rank sends to the expert. All ranks of scope.expert call it together.
void scale_rows(const Scope& scope, const kernels::ExpertAmax& rows, QuantSpec spec);

// Overwrites `received` [R, D] with the rows that arrive in this round from the rows [S, D] of all ranks. Writes zeros after
// the rows of each expert.
void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received);
// Sends the results back: overwrites the rows of this round, in every rank's `rows` [S, D], with the corresponding rows of `made`
// [R, D].
void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows);

}  // namespace octet::nn
