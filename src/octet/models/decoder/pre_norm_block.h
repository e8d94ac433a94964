// One pre-norm block:  x1 = x + attention(norm1(x)),  y = x1 + mlp(norm2(x1)).
#pragma once

#include <memory>

#include "octet/models/decoder/block.h"
#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/mlp.h"
#include "octet/nn/rmsnorm.h"

namespace octet::models {

class PreNormBlock : public Block {
 public:
  PreNormBlock(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe, parallel::ParameterStore& store,
               recipes::ScaleState& scales);

  void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y) override;
  void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy, const nn::LinearOperand& gx,
                const std::function<void()>& before_attention) override;
  nn::LinearOperand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const override {
    return mlp_.down().gradient(scope, g, memory);
  }
  std::vector<nn::Linear*> linears() override;

 private:
  // The memory bill between forward and backward.
  struct Saved {
    Tensor x;      // [T, D], the caller's
    Tensor rstd1;  // [T]
    nn::AttentionSaved attention;
    Tensor x1;     // [T, D]
    Tensor rstd2;  // [T]
    nn::MlpSaved mlp;
  };

  std::int64_t dim_;
  // In the order of the forward pass, which is the order of the parameters.
  nn::RmsNorm norm1_;
  nn::Attention attention_;
  nn::RmsNorm norm2_;
  nn::Mlp mlp_;
  Saved saved_;
};

std::unique_ptr<Block> make_pre_norm_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                           parallel::ParameterStore& store, recipes::ScaleState& scales);

}  // namespace octet::models
