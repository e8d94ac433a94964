// The feed-forward layer:
//   gated   y = down(silu(gate(h)) * up(h)); gate and up are one linear    (Shazeer, GLU Variants Improve Transformer, 2020)
//   plain   y = down(gelu(up(h))), usually with biases
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/kernels/gelu/gelu.h"
#include "octet/nn/linear.h"

namespace octet::nn {

// On the t ranks of the tensor axis F is this rank's part of the layer, for all T tokens; h, y, residual and their gradients are
// its share of the tokens, [T / t, D].
struct MlpSaved {
  LinearSaved up_in;
  Tensor up;  // [T, 2F] if gated, else [T, F]; backward overwrites it with its gradient
  LinearSaved down_in;
};

class Mlp {
 public:
  struct Options {
    std::string name;                                        // "model.layers.0.mlp"
    std::vector<std::string> up = {"gate_proj", "up_proj"};  // its modules; one if `gelu` is set
    std::string down = "down_proj";
    std::int64_t dim = 0, ffn = 0;           // of the whole layer
    std::optional<kernels::Gelu> gelu = {};  // absent: gated
    bool bias = false;                       // of both linears
    double init_std = 0.02, output_init_std = 0.02;
    parallel::Expert expert = {};
  };
  Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Returns h for its producer. Pass the same `saved` to forward.
  LinearOperand input(const Scope& scope, std::int64_t tokens, const MlpSaved& saved) const;
  // Overwrites y with mlp(h) + residual. An absent y is not computed, because a recompute needs `saved` alone.
  void forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  // Overwrites y with mlp(h), of an h that exists.
  void forward(const Scope& scope, const Tensor& h, const Tensor& y, MlpSaved& saved) const;
  // Make again what selective checkpointing left out: first h, for its producer, then the rest, the activation's output included.
  LinearOperand rebuild_input(const Scope& scope, std::int64_t tokens) const {
    return up_.rebuild_input(scope, scope.scratch, tokens);
  }
  void rebuild(const Scope& scope, const LinearOperand& h, MlpSaved& saved) const;
  void rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const;  // of an h that exists
  // Overwrites gh [T, D]. gy comes from gradient(), or exists.
  void backward(const Scope& scope, const LinearOperand& gy, const MlpSaved& saved, const Tensor& gh) const;
  void backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const;
  // Returns the gradient of y for its producer, as nn::Linear::gradient.
  LinearOperand gradient(const Scope& scope, const Tensor& values, const Quantized* memory = nullptr) const {
    return down_.gradient(scope, values, memory);
  }

  std::vector<Linear*> linears() { return {&up_, &down_}; }  // in the order of the forward pass
  Linear& up() { return up_; }
  Linear& down() { return down_; }

 private:
  // These follow the product of up. finish_forward runs the activation and down's product; if y is absent, it makes only what backward
  // reads. finish_rebuild makes that again. finish_backward begins with ga, the gradient of the activation's output.
  void finish_forward(const Scope& scope, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  void finish_rebuild(const Scope& scope, MlpSaved& saved) const;
  void finish_backward(const Scope& scope, const Tensor& ga, const MlpSaved& saved, const Tensor& gh) const;
  void activate(const Scope& scope, const Tensor& x, const LinearOperand& y) const;

  std::optional<kernels::Gelu> gelu_;
  std::int64_t ffn_;  // of this rank
  Linear up_, down_;
};

}  // namespace octet::nn
