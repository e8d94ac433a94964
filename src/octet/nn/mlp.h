// Gated feed-forward layer: y = down(silu(gate(h)) * up(h)); gate and up are one linear.
#pragma once

#include <string>

#include "octet/nn/linear.h"

namespace octet::nn {

// On the t ranks of the tensor axis F is this rank's part of the layer, for all T tokens; h, y, residual and their gradients are
// its share of the tokens, [T / t, D].
struct MlpSaved {
  LinearSaved gate_up_in;
  Tensor gate_up;  // [T, 2F]; backward overwrites it with its gradient
  LinearSaved down_in;
};

class Mlp {
 public:
  using Saved = MlpSaved;
  struct Options {
    std::string name;  // "model.layers.0.mlp"
    std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
    std::int64_t dim = 0, ffn = 0;  // of the whole layer
    double init_std = 0.02, output_init_std = 0.02;
    parallel::Expert expert = {};
  };
  Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // h for its producer; `saved` as in forward.
  LinearOperand input(const Scope& scope, std::int64_t tokens, const MlpSaved& saved) const;
  // y = mlp(h) + residual; y is overwritten. An absent y is not computed: a recompute needs `saved` alone.
  void forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  // y = mlp(h) of an h that exists.
  void forward(const Scope& scope, const Tensor& h, const Tensor& y, MlpSaved& saved) const;
  // What selective checkpointing left out: the same h for its producer, then the rest; SwiGLU's output is made again.
  LinearOperand rebuild_input(const Scope& scope, std::int64_t tokens) const {
    return gate_up_.rebuild_input(scope, scope.scratch, tokens);
  }
  void rebuild(const Scope& scope, const LinearOperand& h, MlpSaved& saved) const;
  void rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const;  // of an h that exists
  // gh [T, D] is overwritten. gy comes from down().gradient().
  void backward(const Scope& scope, const LinearOperand& gy, const MlpSaved& saved, const Tensor& gh) const;
  void backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const;  // of a gy that exists

  // The gradient of y, for its producer, as nn::Linear::gradient.
  LinearOperand gradient(const Scope& scope, const Tensor& values, const Quantized* memory = nullptr) const {
    return down_.gradient(scope, values, memory);
  }
  // In the order of the forward pass.
  std::vector<Linear*> linears() { return {&gate_up_, &down_}; }
  Linear& gate_up() { return gate_up_; }
  Linear& down() { return down_; }
  const Linear& down() const { return down_; }

 private:
  // What follows gate_up: down's product, or what backward reads alone; the same made again; backward from ga, down's gradient.
  void finish_forward(const Scope& scope, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  void finish_rebuild(const Scope& scope, MlpSaved& saved) const;
  void finish_backward(const Scope& scope, const Tensor& ga, const MlpSaved& saved, const Tensor& gh) const;

  std::int64_t ffn_;  // of this rank
  Linear gate_up_, down_;
};

}  // namespace octet::nn
