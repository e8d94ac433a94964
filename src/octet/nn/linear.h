// A linear layer without bias, Y = X Wᵀ, in the precision its recipe says: the only layer that interprets a recipe.
//   fprop  Y[T, out]  = X[T, in]  · W[out, in]ᵀ (+ residual)
//   dgrad  gX[T, in]  = G[T, out] · W[out, in]
//   wgrad  gW[out, in] += Gᵀ[out, T] · X[T, in]
// In FP8 the operands are quantised here (X and G; W by parallel::ParameterStore::refresh), row-wise for the product that sums over
// columns and transposed for the one that sums over tokens, and only the transposed X is kept for backward.
#pragma once

#include <string>
#include <vector>

#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"
#include "octet/recipes/scaler.h"

namespace octet::nn {

// What backward needs of X: one of the two.
struct LinearSaved {
  Tensor x;     // [T, in] itself, where wgrad multiplies BF16 or FP32: the caller keeps it alive
  Quantized q;  // codes_t and scale_inv_t in the stash
};

class Linear {
 public:
  // Registers the weight [out, in] in `store` and the delayed scales in `scales`. `parts` are the Hugging Face module names of the
  // linears fused in this one, in the order of their rows.
  struct Options {
    std::vector<std::string> parts;
    std::int64_t out = 0, in = 0;
    double init_std = 0.02;
    parallel::Parameter* shared_weight = nullptr;  // a tied head reads the embedding's
  };
  // Computes as the recipe does, or in BF16 where the recipe's skip list names the layer.
  Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Hugging Face module name of the first part, with ".fused" when there are several.
  const std::string& name() const { return name_; }
  const std::vector<std::string>& parts() const { return parts_; }
  parallel::Parameter& weight() const { return *weight_; }
  bool is_fp8() const { return compute_ == Compute::fp8; }
  Compute compute() const { return compute_; }
  // Whether backward reads X itself, so that the caller must keep it from forward to backward.
  bool keeps_input() const { return !is_fp8() || recipe_.wgrad_bf16; }

  // After scales and parameters are materialised: the weight learns its scale.
  void bind();

  // y is overwritten; `residual` (of y's shape and dtype) is optional. `saved` is filled when given (codes in the stash).
  void forward(const Scope& scope, const Tensor& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const;
  // Fills `saved` from X as forward did, bit for bit, recording nothing; codes come from `arena`.
  void rebuild(const Scope& scope, Arena& arena, const Tensor& x, LinearSaved& saved) const;
  // gx is overwritten (absent: not computed); the weight's gradient is added to.
  void backward(const Scope& scope, const Tensor& gy, const LinearSaved& saved, const Tensor& gx) const;

 private:
  void add_transposed(Arena& arena, const QuantSpec& spec, std::int64_t tokens, std::int64_t cols, Quantized& q) const;
  void quantize(const Scope& scope, Role role, const Tensor& x, const Quantized& out, Record record) const;

  std::string name_;
  std::vector<std::string> parts_;
  Recipe recipe_;
  Compute compute_;
  std::int64_t out_, in_;
  parallel::Parameter* weight_;
  recipes::ScaleState* scales_;
  int x_slot_ = -1, w_slot_ = -1, g_slot_ = -1;
};

}  // namespace octet::nn
