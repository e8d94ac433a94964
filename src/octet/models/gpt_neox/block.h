// GPT-NeoX's block, with h1 = norm1(x):
//   beside each other   y = x + attention(h1) + mlp(norm2(x))
//   one after another   x1 = x + attention(h1),  y = x1 + mlp(norm2(x1))
#pragma once

#include <memory>

#include "octet/models/decoder/block.h"
#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/gelu_mlp.h"
#include "octet/nn/layernorm.h"

namespace octet::models {

class GptNeoxBlock : public Block {
 public:
  GptNeoxBlock(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe, parallel::ParameterStore& store,
               recipes::ScaleState& scales);

  void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y,
               const std::function<void()>& amid_attention) override;
  void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy, const nn::LinearOperand& gx,
                const std::function<void()>& amid_attention) override;
  nn::LinearOperand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const override {
    return mlp_.down().gradient(scope, g, memory);
  }
  std::vector<nn::Linear*> linears() override;

 private:
  // The memory bill between forward and backward.
  struct Saved {
    Tensor x;            // [T, D], the caller's
    Tensor statistics1;  // [2, T]
    nn::AttentionSaved attention;
    Tensor x1;           // [T, D]; beside each other x itself
    Tensor statistics2;  // [2, T]
    nn::GeluMlpSaved mlp;
  };
  void rebuild_attention(const nn::Scope& scope, std::int64_t tokens);
  void rebuild_mlp(const nn::Scope& scope, std::int64_t tokens);

  std::int64_t dim_;
  bool parallel_;
  // In the order of the forward pass, which is the order of the parameters.
  nn::LayerNorm norm1_;
  nn::Attention attention_;
  nn::LayerNorm norm2_;
  nn::GeluMlp mlp_;
  Saved saved_;
};

std::unique_ptr<Block> make_gpt_neox_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                           parallel::ParameterStore& store, recipes::ScaleState& scales);

}  // namespace octet::models
