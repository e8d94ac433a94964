// Feed-forward layer without a gate: y = down(gelu(up(h))), both with a bias.
#pragma once

#include <string>

#include "octet/kernels/gelu/gelu.h"
#include "octet/nn/linear.h"

namespace octet::nn {

// On the t ranks of the tensor axis F is this rank's part of the layer, for all T tokens; h, y, residual and their gradients are
// its share of the tokens, [T / t, D].
struct GeluMlpSaved {
  LinearSaved up_in;
  Tensor up;  // [T, F]; backward overwrites it with its gradient
  LinearSaved down_in;
};

class GeluMlp {
 public:
  struct Options {
    std::string up, down;           // "gpt_neox.layers.0.mlp.dense_h_to_4h", ...
    std::int64_t dim = 0, ffn = 0;  // of the whole layer
    kernels::Gelu gelu = kernels::Gelu::exact;
    double init_std = 0.02, output_init_std = 0.02;
  };
  GeluMlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // As of Mlp (mlp.h).
  LinearOperand input(const Scope& scope, std::int64_t tokens, const GeluMlpSaved& saved) const;
  void forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y, GeluMlpSaved& saved) const;
  LinearOperand rebuild_input(const Scope& scope, std::int64_t tokens) const {
    return up_.rebuild_input(scope, scope.scratch, tokens);
  }
  void rebuild(const Scope& scope, const LinearOperand& h, GeluMlpSaved& saved) const;
  void backward(const Scope& scope, const LinearOperand& gy, const GeluMlpSaved& saved, const Tensor& gh) const;

  Linear& up() { return up_; }
  Linear& down() { return down_; }
  const Linear& down() const { return down_; }

 private:
  std::int64_t ffn_;  // of this rank
  kernels::Gelu gelu_;
  Linear up_, down_;
};

}  // namespace octet::nn
