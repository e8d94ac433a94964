// One pre-norm block:  x1 = x + attention(norm1(x)),  y = x1 + mlp(norm2(x1)). T is this rank's share of the tokens
// (nn/tokens.h).
#pragma once

#include <functional>

#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/mlp.h"
#include "octet/nn/rmsnorm.h"

namespace octet::models {

// The memory bill of a block between forward and backward; T tokens, D model.
struct BlockSaved {
  Tensor x;      // [T, D], the caller's
  Tensor rstd1;  // [T]
  nn::AttentionSaved attention;
  Tensor x1;     // [T, D]
  Tensor rstd2;  // [T]
  nn::MlpSaved mlp;
};

class Block {
 public:
  Block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe, parallel::ParameterStore& store,
        recipes::ScaleState& scales);

  // y [T, D] is overwritten; an absent y is not computed (a recompute for backward). `saved` lives in the stash.
  void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y, BlockSaved& saved) const;
  // gy: gradient of y, from output_gradient() of this block. gx: gradient of x, from that of the block before; its values [T, D]
  // are gy's own, overwritten. `before_attention` is called between the products of the MLP and the gradient of attention.
  void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy, const nn::LinearOperand& gx,
                BlockSaved& saved, const std::function<void()>& before_attention) const;
  // The gradient of y, whose values are `g`, for its producer; `memory` as in nn::Linear::gradient.
  nn::LinearOperand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const {
    return mlp_.down().gradient(scope, g, memory);
  }

  // The four linears, in the order of the forward pass.
  std::vector<nn::Linear*> linears();
  nn::RmsNorm& norm1() { return norm1_; }
  nn::RmsNorm& norm2() { return norm2_; }

 private:
  std::int64_t dim_;
  // In the order of the forward pass, which is the order of the parameters.
  nn::RmsNorm norm1_;
  nn::Attention attention_;
  nn::RmsNorm norm2_;
  nn::Mlp mlp_;
};

}  // namespace octet::models
