// A branch of the residual stream:  y = x + after(layer(before(x))).  A family has either norm or both: Llama the norm before a
// layer, OLMo 2 the norm after it.
#pragma once

#include <optional>
#include <string>

#include "octet/models/decoder/config.h"
#include "octet/nn/norm.h"

namespace octet::models {

// The names of a branch's norms within a block; a norm without a name does not exist.
struct BranchNorms {
  std::string before = {}, after = {};
};

// What forward keeps of the norms for backward. T is this rank's share of the tokens.
struct BranchSaved {
  Tensor before, after;  // statistics (nn/norm.h)
  Tensor added;          // [T, D]: the layer's output, if a norm reads it
};

class Branch {
 public:
  Branch(const DecoderConfig& config, const std::string& block, const BranchNorms& norms, parallel::ParameterStore& store);

  BranchSaved allocate(const nn::Scope& scope, const Shape& wide) const;
  // Returns the layer's input.
  template <class Layer>
  nn::Operand input(const nn::Scope& scope, const Layer& layer, const Tensor& x, const BranchSaved& saved) const {
    if (!before_) return {.values = x};
    const nn::Operand h = layer.input(scope, x.rows());
    before_->forward(scope, x, h, saved.before);
    return h;
  }
  // Overwrites y. `layer(residual, y)` overwrites y with the layer's output + residual (optional). An absent y is not computed.
  template <class Layer>
  void add(const nn::Scope& scope, const Tensor& x, const Tensor& y, const BranchSaved& saved, const Layer& layer) const {
    if (!after_) return layer(x, y);
    layer(Tensor{}, saved.added);
    add_normed(scope, x, y, saved);
  }

  // Returns the gradient of y, whose values are `values`, for its producer. `g` casts the gradient of the layer's output; null if
  // the layer reads values. `memory` as in nn::Quantizer::gradient.
  nn::Operand sum_gradient(const nn::Scope& scope, const nn::Quantizer* g, const Tensor& values,
                           const Quantized* memory = nullptr) const {
    return g && !after_ ? g->gradient(scope, values, memory) : nn::Operand{.values = values};
  }
  // Returns the gradient of the layer's output, in the scratch if it is not gy itself.
  nn::Operand output_gradient(const nn::Scope& scope, const nn::Quantizer* g, const nn::Operand& gy,
                              const BranchSaved& saved) const;
  // Adds the gradient of x that comes through the layer to the values of gx. gh is the gradient of the layer's input.
  void input_gradient(const nn::Scope& scope, const Tensor& gh, const Tensor& x, const BranchSaved& saved,
                      const nn::Operand& gx) const;

  bool has_before() const { return before_.has_value(); }
  bool has_after() const { return after_.has_value(); }

 private:
  void add_normed(const nn::Scope& scope, const Tensor& x, const Tensor& y, const BranchSaved& saved) const;

  std::optional<nn::Norm> before_, after_;
};

}  // namespace octet::models
