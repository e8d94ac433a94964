// Sends rows of tokens to the ranks of scope.expert that hold their experts, and back, as a round plans it (expert_rounds.h). D
// is the model's dim, S the number of this rank's rows, R = round.total() the number of rows that its experts multiply.
#pragma once

#include "octet/nn/expert_rounds.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// Overwrites `received` [R, D] with what this round brings of the rows [S, D] of all ranks, and with zeros between the experts.
void send_to_experts(const Scope& scope, const ExpertRound& round, const Tensor& rows, const Tensor& received);
// Sends the results back: overwrites the rows of this round, in every rank's `rows` [S, D], with the corresponding rows of `made`
// [R, D].
void send_back(const Scope& scope, const ExpertRound& round, const Tensor& made, const Tensor& rows);
// Writes zeros between the experts of `received` [R, D], whose rows are there.
void fill_up(const Scope& scope, const ExpertRound& round, const Tensor& received);

}  // namespace octet::nn
