// A linear layer, Y = X Wᵀ + b, in the precision that its recipe says. It is three GEMMs and a bias, and knows nothing of other
// ranks, with which nn/sequence.h exchanges what a cut weight needs. G is the gradient of Y.
//   fprop  Y[T, out]  = X[T, in]  · W[out, in]ᵀ (+ residual)
//   dgrad  gX[T, in]  = G[T, out] · W[out, in]
//   wgrad  gW[out, in] += Gᵀ[out, T] · X[T, in]    nothing if W is frozen
// An adapter (nn/adapter.h) computes beside these GEMMs.
// In FP8 the GEMMs read codes (tensor/quantized.h). parallel/weight_cast.h makes the codes of W; x() and g() make those of X and
// G (nn/quantizer.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/kernels/gemm/gemm.h"
#include "octet/nn/adapter.h"
#include "octet/nn/quantizer.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

// Returns "MODULE.PART" for each part.
std::vector<std::string> within(const std::string& module, std::vector<std::string> parts);

class Linear {
 public:
  // Registers the weight [out, in] in `store` and the delayed scales in `scales`. `parts` are the Hugging Face module names of
  // the linears that are fused in this one, in the order of their rows.
  struct Options {
    std::vector<std::string> parts;
    std::int64_t out = 0, in = 0;
    parallel::CutRule cut = {};    // of the weight on the tensor axis
    parallel::Expert expert = {};  // the expert to which the linear belongs; a rank that does not hold it knows only the name
    double init_std = 0.02;
    bool bias = false;                             // starts at zero
    parallel::Parameter* shared_weight = nullptr;  // a tied head reads the embedding's weight
  };
  // Computes as the recipe says, or in BF16 if the recipe's skip list names the layer.
  Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Hugging Face module name of the first part, with ".fused" if there are several.
  const std::string& name() const { return name_; }
  const std::vector<std::string>& parts() const { return parts_; }
  parallel::Parameter& weight() const { return *weight_; }
  std::int64_t out() const { return weight_->spec.shape[0]; }  // rows that this rank holds of the weight
  parallel::Parameter* bias() const { return bias_; }          // or null
  const Adapter* adapter() const { return adapter_.get(); }    // or null
  bool is_fp8() const { return compute_ == Compute::fp8; }
  Compute compute() const { return compute_; }
  // Gives some of the parts, by their numbers, an adapter. The weight is frozen. Call it before anything is materialised.
  void adapt(const std::vector<std::size_t>& parts, std::int64_t rank, double scale, const InputDropout& dropout,
             parallel::ParameterStore& store);
  // Gives the weight its scale. Call it when scales and parameters are materialised.
  void bind();

  // How X and G are allocated, quantized and gathered.
  const Quantizer& x() const { return x_; }
  const Quantizer& g() const { return g_; }

  // y = x Wᵀ + residual; overwrites y. `residual`, of y's shape and dtype, is optional.
  void fprop(const Scope& scope, const Operand& x, const Tensor& residual, const Tensor& y) const;
  // gx = g W; overwrites gx. `w` is dgrad_weight().
  void dgrad(const Scope& scope, const Operand& g, const Tensor& gx) const;
  void dgrad(const Scope& scope, const Operand& g, const kernels::GemmOperand& w, const Tensor& gx) const;
  // Overwrites the weight's gradient with gᵀ x if scope.begins says so, otherwise adds to it.
  void wgrad(const Scope& scope, const Operand& g, const Operand& x) const;

  // Shows scope.watch the weight, if there is a watch and this rank has all of the weight.
  void watch_weight(const Scope& scope) const;
  // The weight as an operand of fprop, beside codes with scales of this tile, and of dgrad. What is made at use lies in the
  // scratch.
  kernels::GemmOperand fprop_weight(const Scope& scope, ScaleTile tile) const;
  kernels::GemmOperand dgrad_weight(const Scope& scope) const;
  const Recipe& recipe() const { return recipe_; }

  // y += b; nothing without a bias. Cut by rows, the bias is cut like the weight. Cut by columns, each rank adds all of it to its
  // share of the tokens.
  void add_bias(const Scope& scope, const Tensor& y) const;
  // Returns an X, as its producer left it, completed or started (Quantizer::start).
  Operand complete_input(const Scope& scope, const Operand& x, Reads reads) const;
  Operand start_input(const Scope& scope, const Operand& x, Reads reads) const;
  // Adds the sum over the tokens of a produced G to the bias's gradient, and returns G started.
  Operand start_gradient(const Scope& scope, const Operand& g) const;

 private:
  // Ranks that send the rows of an operand know its scale.
  int add_slot(Role role, bool sent = false);
  WgradReads wgrad_reads() const;
  Quantized weight_columnwise(const Scope& scope) const;
  void run(const Scope& scope, const char* which, const kernels::Gemm& gemm) const;
  AdapterProducts adapter_products() const { return AdapterProducts({adapter_.get()}, name_); }

  std::string name_;
  std::vector<std::string> parts_;
  Recipe recipe_;
  Compute compute_;
  parallel::Parameter* weight_;
  parallel::Parameter* bias_ = nullptr;
  recipes::ScaleState* scales_;
  Quantizer x_;
  int weight_slot_;  // in `scales`, with delayed scaling; else -1
  Quantizer g_;
  std::unique_ptr<Adapter> adapter_;
};

}  // namespace octet::nn
