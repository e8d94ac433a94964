// A block of a decoder, between the embedding and the final norm. With h1 = norm1(x):
//   one after another   x1 = x + attention(h1),  y = x1 + feed_forward(norm2(x1))    (Llama, Mistral, Mixtral, some GPT-NeoX)
//   parallel residual   y = x + attention(h1) + feed_forward(norm2(x))               (GPT-NeoX)
// The feed-forward layer is an Mlp or a mixture of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/mlp.h"
#include "octet/nn/moe.h"
#include "octet/nn/norm.h"

namespace octet::models {

// A family's names of modules.
struct DecoderModules {
  std::string embedding = "model.embed_tokens", final_norm = "model.norm", head = "lm_head";
  std::string blocks = "model.layers";
  // Within a block:
  std::string attention = "self_attn", feed_forward = "mlp";
  std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"}, up = {"gate_proj", "up_proj"};
  std::string output = "o_proj", down = "down_proj";
};

// Holds what forward keeps for backward: a block's memory bill for one micro-batch. T is this rank's share of the tokens
// (nn/sequence.h), D the model's dim.
struct BlockSaved {
  Tensor x;            // [T, D], the caller's
  Tensor statistics1;  // of norm1 (nn/norm.h)
  nn::AttentionSaved attention;
  Tensor x1;           // [T, D]; x itself with a parallel residual
  Tensor statistics2;  // of norm2
  nn::MlpSaved mlp;    // either this or
  nn::MoeSaved moe;    // that is used
};

class Block {
 public:
  Block(const DecoderConfig& config, const DecoderModules& modules, std::int64_t layer, const Recipe& recipe,
        parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Overwrites y [T, D] and `saved`, whose tensors lie in the stash. An absent y is not computed (a recompute for backward).
  // `amid_attention` is called when all keys and values are there, before attention itself.
  void forward(const nn::Scope& scope, const Tensor& rope_table, const Tensor& x, const Tensor& y, BlockSaved& saved,
               const std::function<void()>& amid_attention) const;
  // gy: gradient of y, from output_gradient() of this block. gx: gradient of x, from output_gradient() of the block before; its
  // values [T, D] are gy's own, overwritten. `amid_attention` is called before the gradient of attention itself, behind dgrad of
  // its output linear (nn/attention.h).
  void backward(const nn::Scope& scope, const Tensor& rope_table, const nn::Operand& gy, const nn::Operand& gx, BlockSaved& saved,
                const std::function<void()>& amid_attention) const;
  // Returns the gradient of y, whose values are `g`, for its producer; `memory` as in nn::Quantizer::gradient.
  nn::Operand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const;

  // In the order of the forward pass.
  std::vector<nn::Linear*> linears();

 private:
  // body(feed-forward layer, what it saves)
  template <class Body>
  auto with_feed_forward(BlockSaved& saved, Body body) const {
    return moe_ ? body(*moe_, saved.moe) : body(*mlp_, saved.mlp);
  }

  std::int64_t dim_;
  bool parallel_;
  // In the order of the forward pass, which is the order of the parameters.
  nn::Norm norm1_;
  nn::Attention attention_;
  nn::Norm norm2_;
  std::unique_ptr<nn::Mlp> mlp_;
  std::unique_ptr<nn::Moe> moe_;  // in place of mlp_
};

}  // namespace octet::models
