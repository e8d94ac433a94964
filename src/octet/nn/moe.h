// Mixture of experts (Jiang et al., Mixtral of Experts, 2024):  y[t] = sum over the k chosen experts e of w[t, e] mlp_e(h[t]).
// The router, logits = h Wgᵀ in FP32, is kernels/router. Every token goes to all its experts; none is dropped. An expert is an
// Mlp on the rows that chose it, in the precision of the recipe. The rows that fill up its tiles are zero and change nothing.
//
// The e ranks of scope.expert hold E / e experts each and exchange rows (expert_rounds.h). Memory is planned for twice as many
// rows as come to a rank if all experts are chosen equally often. If more come, they come in several rounds, of which nothing is
// kept: backward sends the tokens again and recomputes. Only the GPU knows how many rows go where, so forward waits for E numbers
// of each rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/nn/expert_rounds.h"
#include "octet/nn/mlp.h"

namespace octet::nn {

// A round, and what its experts keep for backward.
struct ExpertRoundSaved {
  ExpertRound plan;
  std::vector<MlpSaved> experts;  // those of this rank
};

// Everything that forward keeps for backward. This rank of the context axis has T tokens, together with the ranks of the tensor
// axis, with k experts each, and sends S rows.
struct MoeSaved {
  Tensor h;           // [T, D]
  Tensor logits;      // [T, E]
  Tensor experts;     // [T, k] I32
  Tensor weights;     // [T, k]
  Tensor statistics;  // [B, 2E + 1] of whole sequences
  Tensor rows;        // [T, k] I32: the place of each among the S rows
  Tensor returned;    // [S, D]: the results of the experts
  std::vector<ExpertRoundSaved> rounds;
  std::vector<ExpertRoundSaved> fullest;  // on the meta device: the round that needs the most memory
};

class Moe {
 public:
  struct Options {
    std::string name;                            // "model.layers.0.block_sparse_moe"
    std::vector<std::string> up = {"w1", "w3"};  // modules of an expert
    std::string down = "w2";
    std::int64_t dim = 0, ffn = 0, experts = 0, top_k = 0;
    double init_std = 0.02, output_init_std = 0.02;
    double balance = 0, z = 0;  // coefficients of the router's losses
  };
  Moe(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Allocates h [tokens, D] for its producer.
  Operand input(const Scope& scope, std::int64_t tokens) const;
  // Overwrites y with moe(h) + residual; an absent y is not computed. The router's losses of whole sequences are added to
  // scope.router_total, on the first rank of the context axis.
  void forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y, MoeSaved& saved) const;
  // Makes again what selective checkpointing left out: first h, for its producer, then the rest. scope.record must be nothing.
  Operand rebuild_input(const Scope& scope, std::int64_t tokens) const;
  void rebuild(const Scope& scope, const Operand& h, MoeSaved& saved) const;
  // Overwrites gh [T, D]. The gradient includes that of the router's losses. That of an expert without tokens is not touched: it
  // stays stale, and parallel::Units zeroes it.
  void backward(const Scope& scope, const Operand& gy, MoeSaved& saved, const Tensor& gh) const;
  // Returns the gradient of y for its producer, which writes values.
  Operand gradient(const Scope&, const Tensor& values, const Quantized* = nullptr) const { return {.values = values}; }

  // Returns the linears of all experts, those of other ranks included, in their order.
  std::vector<Linear*> linears();
  parallel::Parameter& router() { return *router_; }

 private:
  // Backward finds what it needs of a round in the stash. Temporaries lie in the scratch of the caller's scope.
  void route(const Scope& scope, MoeSaved& saved) const;
  std::int64_t quota(const Scope& scope, std::int64_t tokens) const;
  ExpertRound fullest(const Scope& scope, std::int64_t tokens) const;
  std::vector<ExpertRound> count_rounds(const Scope& scope, const MoeSaved& saved) const;
  std::int64_t rows_sent(const Scope& scope, const MoeSaved& saved, const ExpertRound& round) const;
  // Returns x of all ranks' tokens as the experts of this rank receive it in a round, multiplied by the weights of the tokens if
  // they are given.
  Tensor received(const Scope& scope, Arena& arena, const MoeSaved& saved, const ExpertRound& round, const Tensor& x,
                  const Tensor& weights) const;
  void run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& returned) const;
  void run_forward(const Scope& scope, MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds) const;
  void rebuild_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const;
  Tensor backward_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& gy) const;
  // Runs rounds backward. With `again` they are recomputed first, because nothing was kept of them.
  Tensor run_backward(const Scope& scope, const MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds, const Tensor& gy,
                      bool again) const;
  void router_backward(const Scope& scope, const MoeSaved& saved, const Tensor& gweights, const Tensor& gh) const;
  // Calls body(expert of this rank, its first row, its end) for the experts that have rows.
  template <class Body>
  void for_experts(const ExpertRound& round, Body body) const {
    std::int64_t at = 0;
    for (std::size_t e = 0; e < round.rows.size(); at += round.rows[e++]) {
      if (round.rows[e] > 0) body(e, at, at + round.rows[e]);
    }
  }

  bool keeps_rows(const Scope& scope) const {
    return scope.checkpointing != Checkpointing::selective && own(0).up().x().keeps_values();
  }
  std::int64_t own_count() const { return options_.experts / place_.size; }
  Mlp& own(std::size_t i) const { return *experts_[static_cast<std::size_t>(place_.begin(options_.experts)) + i]; }

  Options options_;
  parallel::ExpertPlace place_;
  parallel::Parameter* router_;
  std::vector<std::unique_ptr<Mlp>> experts_;
  std::unique_ptr<comm::Group> alone_;  // instead of the tensor axis: experts see the rows of all its ranks
};

}  // namespace octet::nn
