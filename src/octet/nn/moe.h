// Mixture of experts (Jiang et al., Mixtral of Experts, 2024):  y[t] = sum over the k chosen experts e of w[t, e] mlp_e(h[t]).
// The router, logits = h Wgᵀ in FP32, is kernels/router; every token goes to all its experts, none is dropped. An expert is an
// Mlp of the rows that chose it, in the precision that the recipe says; rows that fill up its tiles are zero and change nothing.
//
// The e ranks of scope.expert hold E / e experts each and exchange rows (expert_rounds.h). Memory is planned for twice as many as
// come to a rank when all experts are chosen alike. Where more come, they come in several rounds, nothing of which is kept:
// backward sends the tokens again and recomputes. How many rows go where is known on the GPU alone, so forward waits for E
// numbers of each rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/nn/expert_rounds.h"
#include "octet/nn/mlp.h"

namespace octet::nn {

// What a round keeps.
struct ExpertRoundSaved {
  ExpertRound plan;
  std::vector<MlpSaved> experts;  // of this rank's
};

// T tokens of this rank of the context axis (all of those of the tensor axis), k experts each; S rows that this rank sends.
struct MoeSaved {
  Tensor h;           // [T, D]
  Tensor logits;      // [T, E]
  Tensor experts;     // [T, k] I32
  Tensor weights;     // [T, k]
  Tensor statistics;  // [B, 2E + 1] of whole sequences
  Tensor rows;        // [T, k] I32, where each stands among the S
  Tensor returned;    // [S, D], what the experts made of them
  std::vector<ExpertRoundSaved> rounds;
  std::vector<ExpertRoundSaved> fullest;  // on the meta device: one that holds the most
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
  // y = moe(h) + residual; y is overwritten, an absent y is not computed. The router's losses are added to scope.router_total, on
  // the first rank of the context axis for whole sequences.
  void forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y, MoeSaved& saved) const;
  // What selective checkpointing left out: the same h for its producer, then the rest.
  Operand rebuild_input(const Scope& scope, std::int64_t tokens) const;
  void rebuild(const Scope& scope, const Operand& h, MoeSaved& saved) const;
  // gh [T, D] is overwritten. The gradient is that of the router's losses, too. That of an expert without tokens is not touched:
  // parallel::Units finds it stale.
  void backward(const Scope& scope, const Operand& gy, MoeSaved& saved, const Tensor& gh) const;
  // The gradient of y, for its producer: values.
  Operand gradient(const Scope&, const Tensor& values, const Quantized* = nullptr) const { return {.values = values}; }

  // Of all experts, those of other ranks, too, in their order.
  std::vector<Linear*> linears();
  parallel::Parameter& router() { return *router_; }

 private:
  // What backward needs of a round lies in the stash, temporaries in the scratch of the caller's scope.
  void route(const Scope& scope, MoeSaved& saved) const;
  std::int64_t quota(const Scope& scope, std::int64_t tokens) const;
  ExpertRound fullest(const Scope& scope, std::int64_t tokens) const;
  std::vector<ExpertRound> count_rounds(const Scope& scope, const MoeSaved& saved) const;
  std::int64_t rows_sent(const Scope& scope, const MoeSaved& saved, const ExpertRound& round) const;
  // x of all ranks' tokens as the experts of this rank receive it in a round, times the weights of the tokens where given.
  Tensor received(const Scope& scope, Arena& arena, const MoeSaved& saved, const ExpertRound& round, const Tensor& x,
                  const Tensor& weights) const;
  void run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& returned) const;
  void run_forward(const Scope& scope, MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds) const;
  void rebuild_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const;
  Tensor backward_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& gy) const;
  // `again`: of rounds that nothing was kept of.
  Tensor run_backward(const Scope& scope, const MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds, const Tensor& gy,
                      bool again) const;
  void router_backward(const Scope& scope, const MoeSaved& saved, const Tensor& gweights, const Tensor& gh) const;
  // body(expert of this rank, its first row, its end) for those that have rows.
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
  std::unique_ptr<comm::Group> alone_;  // in place of the tensor axis: experts see rows of all its ranks
};

}  // namespace octet::nn
