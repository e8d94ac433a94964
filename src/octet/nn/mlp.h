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

// F is this rank's part of the layer. h, y, residual and their gradients are shares of the tokens, [T / t, D] (nn/sequence.h).
struct MlpSaved {
  Operand up_in;
  Tensor up;  // [T, 2F] if gated, else [T, F]; backward overwrites it with its gradient
  Operand down_in;
};

// One layer, or all experts of a mixture (nn/moe.h), whose h, y and gradients have the rows of scope.groups.
class Mlp {
 public:
  struct Options {
    std::string name;                                        // "model.layers.0.mlp"; its experts are "NAME.experts.0", ...
    std::vector<std::string> up = {"gate_proj", "up_proj"};  // its modules: these, or one of both, or one if `gelu` is set
    std::string down = "down_proj";
    std::int64_t dim = 0, ffn = 0;           // of the whole layer, or of an expert
    std::int64_t experts = 0;                // 0: one layer
    std::optional<kernels::Gelu> gelu = {};  // absent: gated
    bool bias = false;                       // of both linears
    double init_std = 0.02, output_init_std = 0.02;
  };
  Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Allocates h for its producer.
  Operand input(const Scope& scope, std::int64_t tokens) const { return up_.x().allocate(scope, tokens, forward_reads(scope)); }
  // Overwrites y with mlp(h) + residual (optional). If y is absent, it is not computed; a recompute needs only `saved`.
  void forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const;
  // Whether backward reads h.
  bool keeps_input() const { return up_.x().is_kept(); }
  // Completes an h that a rebuild scope has made again because selective checkpointing did not keep it (if backward reads h),
  // and makes the activation's output again.
  void rebuild(const Scope& scope, const Operand& h, MlpSaved& saved) const;
  // Overwrites gh [T, D], which may be the memory of gy's values.
  void backward(const Scope& scope, const Operand& gy, const MlpSaved& saved, const Tensor& gh) const;

  bool is_gated() const { return !gelu_; }
  Linear& up() { return up_; }
  const Linear& up() const { return up_; }
  Linear& down() { return down_; }
  const Linear& down() const { return down_; }
  // Returns the weights in the order of the forward pass: those of the first expert, of the second, ...
  std::vector<LinearWeight*> linears();

 private:
  struct Weights {
    std::vector<LinearWeight> up, down;
  };
  static Weights make_weights(const Options& options, const Recipe& recipe, parallel::ParameterStore& store,
                              recipes::ScaleState& scales);
  Mlp(Weights weights, const parallel::ExpertPlace& place, std::optional<kernels::Gelu> gelu, const Recipe& recipe,
      const recipes::ScaleState& scales);
  // Makes the input of `down` from saved.up.
  Operand activation(const Scope& scope, Reads reads, const MlpSaved& saved) const;
  void rebuild_down_input(const Scope& scope, MlpSaved& saved) const;

  Linear up_, down_;
  std::optional<kernels::Gelu> gelu_;
};

}  // namespace octet::nn
