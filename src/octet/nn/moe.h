// Mixture of experts (Jiang et al., Mixtral of Experts, 2024):  y[t] = sum over the k chosen experts e of w[t, e] mlp_e(h[t]).
// The router, logits = h Wgᵀ in FP32, is kernels/router. A bias may change its choice of experts; it is adjusted by how often
// each expert was chosen. Every token goes to all its experts; none is dropped. An expert is an Mlp for the rows that chose it,
// in the precision of the recipe. The rows that fill up its tiles are zero and change nothing.
//
// The rows of all experts of a rank lie in one matrix, in groups (tensor/row_groups.h).
//
// The e ranks of scope.expert hold E / e experts each and exchange rows (expert_rounds.h). Memory is planned for twice as many
// rows as arrive at a rank if all experts are chosen equally often. If more arrive, they come in several rounds, and nothing of
// them is kept: backward sends the tokens again and recomputes. The numbers of rows depend on the tokens, so with several ranks
// forward waits for E numbers from each rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/nn/expert_rounds.h"
#include "octet/nn/mlp.h"

namespace octet::nn {

// A round, and what its experts keep for backward.
struct ExpertRoundSaved {
  ExpertRound plan;  // on one rank only its groups
  MlpSaved experts = {};
  // Used between dispatch and collect: the rows that the experts read and the rows that they write, [R, D]. In backward, `in`
  // is set only if activations are recomputed. `gradient` is the gradient of the experts' output. It shares memory with `out`,
  // which dgrad then overwrites.
  Operand in = {}, gradient = {};
  Tensor out = {};
  Tensor token_numbers = {};  // [R] I32, of a step in which inputs of adapters are dropped (Scope::token_numbers)
};

// Everything that forward keeps for backward. T is the number of tokens that this rank of the context axis has, together with
// the ranks of the tensor axis; each token has k experts. With several ranks of the expert axis, a rank sends S = T k rows.
// With one rank, the experts read the rows in place, so S is R, the number of rows of the groups.
struct MoeSaved {
  Tensor h;           // [T, D]
  Tensor logits;      // [T, E]
  Tensor experts;     // [T, k] I32
  Tensor weights;     // [T, k]
  Tensor statistics;  // [B, 2E + 1] of whole sequences
  Tensor rows;        // [T, k] I32: the place of each among the S rows
  Tensor returned;    // [S, D]: the results of the experts
  std::vector<ExpertRoundSaved> rounds;
  const Arena* stash = nullptr;  // in which the experts keep `kept` bytes, if there is one round
  std::size_t kept = 0;
};

// Temporaries in the scratch that one part of a pass leaves for the next ones.
struct MoeWork {
  Tensor gy, gweights;   // backward: the gradients of y, of all T tokens, and of the weights
  Tensor rows;           // backward: [S, D], the gradients of the rows that were sent
  std::size_t mark = 0;  // the scratch is released to it when the rows of the experts are no longer needed
};

class Moe {
 public:
  struct Options {
    Mlp::Options mlp;  // the experts; its name is that of the layer: "model.layers.0.block_sparse_moe"
    std::int64_t top_k = 0;
    bool normalise = true;                 // the weights of a token's experts add up to 1
    double balance = 0, z = 0;             // coefficients of the router's losses
    std::optional<double> bias_rate = {};  // the choice of experts has a bias, which changes by this much after a step
    std::int64_t number = 0;               // of this mixture, among those of the model
  };
  Moe(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Allocates h [tokens, D] for its producer, also in a rebuild.
  Operand input(const Scope& scope, std::int64_t tokens) const;

  // The parts of forward, in this order: y = moe(h) + residual. Dispatch and collect are exchanges, on StreamId::experts. If
  // rows come in several rounds, both do nothing, and the experts run the rounds in turn.

  // Chooses the experts of each token. Adds the router's losses of whole sequences, and the experts' loads, to
  // scope.router_total, on the first rank of the context axis.
  void route(const Scope& scope, const Operand& h, MoeSaved& saved) const;
  // Counts the rows and sends them to their experts. With several ranks, the host waits for the counts.
  void dispatch(const Scope& scope, MoeSaved& saved, MoeWork& work) const;
  void experts(const Scope& scope, MoeSaved& saved) const;
  // Sends the results of the experts back.
  void collect(const Scope& scope, MoeSaved& saved, const MoeWork& work) const;
  // Overwrites y with the weighted sum of the results; an absent y is not computed.
  void combine(const Scope& scope, const Tensor& residual, const Tensor& y, const MoeSaved& saved) const;

  // The parts of backward, in this order. The gradient includes that of the router's losses. With selective checkpointing,
  // first make h again: input(), its producer, rebuild().
  void rebuild(const Scope& scope, const Operand& h, MoeSaved& saved) const;
  void combine_backward(const Scope& scope, const Operand& gy, const MoeSaved& saved, MoeWork& work) const;
  void dispatch_gradients(const Scope& scope, MoeSaved& saved, MoeWork& work) const;
  void experts_backward(const Scope& scope, MoeSaved& saved, const MoeWork& work) const;
  void collect_gradients(const Scope& scope, MoeSaved& saved, MoeWork& work) const;
  // Overwrites gh [T, D].
  void route_backward(const Scope& scope, const MoeSaved& saved, const MoeWork& work, const Tensor& gh) const;

  // Returns the experts, including those of other ranks.
  Mlp& mlp() { return experts_; }
  const std::string& name() const { return options_.mlp.name; }
  parallel::Parameter& router() { return *router_; }
  // Changes the bias in this rank's copy according to the step's counts in scope.router_total, summed over all ranks. Does
  // nothing without a bias, if the model is frozen, or if *found_inf is set.
  void update_bias(Stream& stream, const double* router_total, const float* found_inf) const;

 private:
  using Rounds = std::vector<ExpertRoundSaved>;
  // Allocates the groups of this rank's experts, whose counts the caller fills in before group_rows(). Up to `rows` rows arrive;
  // a plan assumes `used`.
  RowGroups make_groups(const Scope& scope, std::int64_t rows, std::int64_t used) const {
    return allocate_groups(scope.stash, own_count(), grouped_rows(rows, own_count()), used);
  }
  void count_rows(const Scope& scope, MoeSaved& saved) const;
  // Copies the plan of a round to the device. Several rounds share the memory of their plans there.
  void announce(const Scope& scope, const ExpertRound& plan) const;
  // Returns the rows of x, from the tokens of all ranks, that the experts of this rank receive in a round, multiplied by the
  // weights of the tokens if these are given. The result lies in `memory`, which has room for [R, D] of dtype_sent(). Scales of
  // codes lie in the scratch and must stay there until the experts have run.
  Operand received(const Scope& scope, const MoeSaved& saved, const ExpertRoundSaved& round, const Quantizer& reader,
                   const Tensor& x, const Tensor& weights, const Tensor& memory) const;
  DType dtype_sent(const Scope& scope, const ExpertRoundSaved& round, const Quantizer& reader) const {
    return scope.expert.size() == 1 ? scope.dtype : reader.dtype_sent(scope, round.plan.whole);
  }
  Tensor allocate_rows(Arena& arena, const ExpertRoundSaved& round, DType dtype) const {
    return allocate(arena, dtype, {round.plan.groups.rows(), options_.mlp.dim});
  }
  // The steps of a round forward; run_round() runs all of them.
  void receive(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const;
  void receive_gradients(const Scope& scope, const MoeSaved& saved, const MoeWork& work, ExpertRoundSaved& round) const;
  // Sends the tokens' numbers along with their rows, for experts whose adapters drop inputs.
  void number_rows(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const;
  void run_experts(const Scope& scope, ExpertRoundSaved& round) const;
  void run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const;
  // Run several rounds without keeping anything, forward or, after recomputing each round, backward.
  void run_rounds(const Scope& scope, const MoeSaved& saved, Rounds& rounds) const;
  void run_rounds_backward(const Scope& scope, const MoeSaved& saved, Rounds& rounds, const MoeWork& work) const;
  // Whether a plan, on the meta device, needs memory for several rounds.
  static bool needs_room_for_rounds(const Scope& scope);
  std::size_t measure_rounds(const Scope& scope, const MoeSaved& saved,
                             const std::function<void(const Scope&, Rounds&)>& run) const;
  void router_backward(const Scope& scope, const MoeSaved& saved, const Tensor& gweights, const Tensor& gh) const;

  std::int64_t own_count() const { return options_.mlp.experts / place_.size; }

  Options options_;
  parallel::ExpertPlace place_;
  parallel::Parameter* router_;
  parallel::Parameter* bias_;  // or null
  Mlp experts_;
};

}  // namespace octet::nn
