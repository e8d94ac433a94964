// A block of a decoder: what a family puts between the embedding and the final norm.
#pragma once

#include <functional>
#include <vector>

#include "octet/nn/linear.h"

namespace octet::models {

// What backward needs of forward stays in the block until the next forward: each kind says in a struct Saved what that is, the
// block's memory bill. T is this rank's share of the tokens (nn/tokens.h), D model.
class Block {
 public:
  virtual ~Block() = default;

  // y [T, D] is overwritten; an absent y is not computed (a recompute for backward). What is kept lies in the stash, and x is the
  // caller's. `amid_attention` is called when all keys and values are there, before attention itself.
  virtual void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y,
                       const std::function<void()>& amid_attention) = 0;
  // gy: gradient of y, from output_gradient() of this block. gx: gradient of x, from that of the block before; its values [T, D]
  // are gy's own, overwritten. `amid_attention` is called before the gradient of attention itself, behind dgrad of its
  // output linear (nn/attention.h).
  virtual void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy,
                        const nn::LinearOperand& gx, const std::function<void()>& amid_attention) = 0;
  // The gradient of y, whose values are `g`, for its producer; `memory` as in nn::Linear::gradient.
  virtual nn::LinearOperand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const = 0;

  // In the order of the forward pass.
  virtual std::vector<nn::Linear*> linears() = 0;
};

}  // namespace octet::models
