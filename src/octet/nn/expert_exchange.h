// Rows of tokens on their way to the ranks of scope.expert that hold their experts, and back, as a round plans it
// (expert_rounds.h). D model, S the rows of this rank, R = round.total() those that its experts multiply.
#pragma once

#include "octet/nn/expert_rounds.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// received [R, D] = what this round brings of the rows [S, D] of all ranks, and zeros between the experts.
void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received);
// The way back: of rows [S, D] of every rank, those of this round are overwritten with what stands in their place in `made` [R,
// D].
void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows);
// Zeros between the experts of `received` [R, D], whose rows are there.
void fill_up(const Scope& scope, const ExpertRound& round, const Tensor& received);

}  // namespace octet::nn
