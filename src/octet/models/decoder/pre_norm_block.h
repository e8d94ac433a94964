// One pre-norm block:  x1 = x + attention(norm1(x)),  y = x1 + feed_forward(norm2(x1)), of an Mlp or of a mixture of them.
#pragma once

#include <memory>

#include "octet/models/decoder/block.h"
#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/mlp.h"
#include "octet/nn/moe.h"
#include "octet/nn/rmsnorm.h"

namespace octet::models {

// FeedForward: nn::Mlp or nn::Moe.
template <class FeedForward>
class PreNormBlock : public Block {
 public:
  PreNormBlock(const DecoderConfig& config, std::int64_t layer, const typename FeedForward::Options& feed_forward,
               const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y,
               const std::function<void()>& amid_attention) override;
  void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::LinearOperand& gy, const nn::LinearOperand& gx,
                const std::function<void()>& amid_attention) override;
  nn::LinearOperand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const override {
    return feed_forward_.gradient(scope, g, memory);
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
    typename FeedForward::Saved feed_forward;
  };

  std::int64_t dim_;
  // In the order of the forward pass, which is the order of the parameters.
  nn::RmsNorm norm1_;
  nn::Attention attention_;
  nn::RmsNorm norm2_;
  FeedForward feed_forward_;
  Saved saved_;
};

// A dense block; one whose tokens choose between experts.
std::unique_ptr<Block> make_pre_norm_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                           parallel::ParameterStore& store, recipes::ScaleState& scales);
std::unique_ptr<Block> make_mixture_block(const DecoderConfig& config, std::int64_t layer, const Recipe& recipe,
                                          parallel::ParameterStore& store, recipes::ScaleState& scales);

}  // namespace octet::models
