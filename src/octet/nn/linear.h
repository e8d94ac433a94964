// A linear layer, Y = X Wᵀ + b, in the precision of its recipe. It consists of three GEMMs and a bias. It does not know other
// ranks; nn/sequence.h exchanges what a cut weight requires. G is the gradient of Y.
//   fprop  Y[T, out]  = X[T, in]  · W[out, in]ᵀ (+ residual)
//   dgrad  gX[T, in]  = G[T, out] · W[out, in]
//   wgrad  gW[out, in] = Gᵀ[out, T] · X[T, in] (+ gW)    not computed if W is frozen
// An adapter (nn/adapter.h) adds its own GEMMs to these.
// In FP8 the GEMMs read codes (tensor/quantized.h). parallel/weight_cast.h makes the codes of W; x() and g() make those of X and
// G (nn/quantizer.h).
//
// The same linear of all experts of a mixture is one Linear with a weight for each expert. Its operands have the rows of all
// experts of this rank, scope.groups, and each GEMM is a grouped one (nn/product.h). The tensor axis cuts the weights of
// experts, but every rank has the rows of all tokens, so ranks do not exchange tokens. Experts have no bias and add no
// residual.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "octet/nn/adapter.h"
#include "octet/nn/product.h"
#include "octet/nn/quantizer.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

// Returns "MODULE.PART" for each part.
std::vector<std::string> within(const std::string& module, std::vector<std::string> parts);

// A weight of a linear, with the names that a model file and the recipe's skip list give it, its bias and its adapter.
class LinearWeight {
 public:
  // Registers the weight [out, in] in `store` and the delayed scales in `scales`. `parts` are the Hugging Face module names of
  // the linears that are fused in this one, in the order of their rows.
  struct Options {
    std::vector<std::string> parts;
    std::int64_t out = 0, in = 0;
    parallel::CutRule cut = {};    // of the weight on the tensor axis
    parallel::Expert expert = {};  // the expert to which the weight belongs; a rank that does not hold it knows only the name
    double init_std = 0.02;
    bool bias = false;                             // starts at zero
    parallel::Parameter* shared_weight = nullptr;  // a tied head reads the embedding's weight
  };
  // Computes as the recipe says, or in BF16 if the recipe's skip list names the layer.
  LinearWeight(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Hugging Face module name of the first part, with ".fused" if there are several.
  const std::string& name() const { return name_; }
  const std::vector<std::string>& parts() const { return parts_; }
  parallel::Parameter& weight() const { return *weight_; }
  parallel::Parameter* bias() const { return bias_; }        // or null
  const Adapter* adapter() const { return adapter_.get(); }  // or null
  bool is_fp8() const { return compute_ == Compute::fp8; }
  Compute compute() const { return compute_; }
  // The number in `scales` of the delayed scale of X, W or G; -1 without one.
  int slot(Role role) const { return slots_[static_cast<std::size_t>(role)]; }

  // Gives some of the parts, by their numbers, an adapter. The weight must be frozen. Call it before anything is materialised,
  // and then call Linear::serve_adapters().
  void adapt(const Adapter::Options& options, parallel::ParameterStore& store);
  // Gives the weight its scale. Call it when scales and parameters are materialised.
  void bind();

  // Shows scope.watch the weight, if there is a watch and this rank has all of the weight.
  void watch(const Scope& scope) const;
  // Return the weight as an operand of fprop, for an X with scales of this tile, and of dgrad. Codes that are made at use lie
  // in the scratch.
  kernels::GemmOperand fprop_operand(const Scope& scope, ScaleTile tile) const;
  kernels::GemmOperand dgrad_operand(const Scope& scope) const;

 private:
  // Registers a delayed scale. If `sent`, ranks that send rows of the operand also know its scale.
  void add_slot(Role role, bool sent = false);

  std::string name_;
  std::vector<std::string> parts_;
  Compute compute_;
  parallel::Parameter* weight_;
  parallel::Parameter* bias_;
  recipes::ScaleState* scales_;
  std::array<int, 3> slots_;  // by Role
  std::unique_ptr<Adapter> adapter_;
};

class Linear {
 public:
  using Options = LinearWeight::Options;
  Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);
  // Makes the linear of a layer of experts from the weights of all experts, in their order. Throws Error{config} if the recipe's
  // skip list names only some of them.
  Linear(std::vector<LinearWeight> weights, const parallel::ExpertPlace& place, const Recipe& recipe,
         const recipes::ScaleState& scales);

  std::vector<LinearWeight>& weights() { return weights_; }
  // These return the properties of the only weight, or of the first expert of this rank in a layer of experts.
  const std::string& name() const { return own().front().name(); }
  parallel::Parameter& weight() const { return own().front().weight(); }
  parallel::Parameter* bias() const { return own().front().bias(); }
  std::int64_t out() const { return weight().spec.shape[0]; }  // rows that this rank holds of a weight
  bool is_fp8() const { return own().front().is_fp8(); }
  // The cut along which ranks of the tensor axis exchange tokens.
  parallel::Cut cut() const { return of_experts() ? parallel::Cut::none : weight().spec.cut.along; }

  // Gives the only weight its scale (LinearWeight::bind).
  void bind() { weights_.front().bind(); }
  // Call it after weights have been given adapters. Throws Error{config} if only some of them have.
  void serve_adapters();
  bool is_adapted() const { return adapters_.has_value(); }

  // How X and G are allocated, quantized and gathered. One quantizer serves all experts of this rank.
  const Quantizer& x() const { return x_; }
  const Quantizer& g() const { return g_; }

  // y = x Wᵀ + residual; overwrites y. `residual`, of y's shape and dtype, is optional.
  void fprop(const Scope& scope, const Operand& x, const Tensor& residual, const Tensor& y) const;
  // gx = g W; overwrites gx. `w` is dgrad_weights().
  using Weights = std::vector<kernels::GemmOperand>;
  void dgrad(const Scope& scope, const Operand& g, const Weights& w, const Tensor& gx) const;
  // Returns the weights as operands of dgrad. Codes that are made at use lie in the scratch.
  Weights dgrad_weights(const Scope& scope) const;
  // Overwrites the gradients of each weight, gᵀ x, and of its adapter if scope.overwrites says so, otherwise adds to them.
  void wgrad(const Scope& scope, const Operand& g, const Operand& x) const;

  // y += b. Does nothing without a bias. If the weight is cut by rows, so is the bias. If it is cut by columns, each rank adds
  // the whole bias to its share of the tokens.
  void add_bias(const Scope& scope, const Tensor& y) const;
  // Returns an X that its producer has written, completed or started (Quantizer::start).
  Operand complete_input(const Scope& scope, const Operand& x, Reads reads) const;
  Operand start_input(const Scope& scope, const Operand& x, Reads reads) const;
  // Adds the sum over the tokens of a produced G to the bias's gradient, and returns G started.
  Operand start_gradient(const Scope& scope, const Operand& g) const;

 private:
  bool of_experts() const { return static_cast<bool>(weights_.front().weight().spec.expert); }
  std::span<const LinearWeight> own() const { return {weights_.data() + first_, count_}; }
  Quantizer::Options operand(Role role) const;
  // Shows the product of each weight in FP8 to scope.watch, if there is one.
  void watch(const Scope& scope, const char* which, const std::function<kernels::Gemm(const GroupExtent&)>& product) const;

  Recipe recipe_;
  std::vector<LinearWeight> weights_;
  std::size_t first_, count_;  // the weights that this rank holds: the only one, or those of its experts
  Quantizer x_, g_;
  std::optional<AdapterProducts> adapters_;
};

}  // namespace octet::nn
