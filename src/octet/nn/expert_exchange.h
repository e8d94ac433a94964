// Sends rows of tokens to the ranks of scope.expert that hold their experts, and back, as a round plans it (expert_rounds.h). D
// is the model's dim, S the number of this rank's rows, R = groups.rows() what the experts of this rank have room for, and A the
// rows that a round can bring.
#pragma once

#include "octet/kernels/experts/experts.h"
#include "octet/nn/expert_rounds.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// A round, and what it needs on the device.
struct ExchangePlan {
  ExpertRound round = {};
  RowGroups groups = {};  // [R] rows of this rank's experts
  Tensor places = {};     // [A, 1] I32: round.places, and behind them nothing
};

// Overwrites rows.amax [E] with each expert's scale under the current scaling `spec`, made of the largest magnitude that any rank
// sends to it. All ranks of scope.expert call it together.
void scale_rows(const Scope& scope, const kernels::ExpertAmax& rows, QuantSpec spec);

// Overwrites `received` [R, D] with what this round brings of the rows [S, D] of all ranks, and with zeros behind the rows of
// each expert.
void send_to_experts(const Scope& scope, const ExchangePlan& plan, const Tensor& rows, const Tensor& received);
// Sends the results back: overwrites the rows of this round, in every rank's `rows` [S, D], with the corresponding rows of `made`
// [R, D].
void send_back(const Scope& scope, const ExchangePlan& plan, const Tensor& made, const Tensor& rows);

}  // namespace octet::nn
