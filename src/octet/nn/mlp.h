// Gated feed-forward layer: y = down(silu(gate(h)) * up(h)); gate and up are one linear.
#pragma once

#include <string>

#include "octet/nn/linear.h"

namespace octet::nn {

struct MlpSaved {
  LinearSaved gate_up_in;
  Tensor gate_up;  // [T, 2F]; backward overwrites it with its gradient
  LinearSaved down_in;
};

class Mlp {
 public:
  struct Options {
    std::string name;  // "model.layers.0.mlp"
    std::int64_t dim = 0, ffn = 0;
    double init_std = 0.02, output_init_std = 0.02;
  };
  Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  bool keeps_input() const { return gate_up_.keeps_input(); }
  // y = mlp(h) + residual; y is overwritten. An absent y is not computed: a recompute needs `saved` alone.
  void forward(const Scope& scope, const Tensor& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  // What selective checkpointing left out, from the same h; SwiGLU's output is made again.
  void rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const;
  // gh [T, D] is overwritten.
  void backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const;

  Linear& gate_up() { return gate_up_; }
  Linear& down() { return down_; }

 private:
  Options options_;
  Linear gate_up_, down_;
};

}  // namespace octet::nn
