// A block of a decoder, between the embedding and the final norm: attention and a feed-forward layer, each a branch of the
// residual stream with its norms (branch.h). With a(x) and f(x) for what the branches add to x:
//   one after another   x1 = x + a(x),  y = x1 + f(x1)    (all; GPT-NeoX if its config says so)
//   parallel residual   y = x + a(x) + f(x)               (GPT-NeoX)
// The feed-forward layer is an Mlp or a mixture of them. Forward and backward are lists of parts, so that the caller can decide
// what other streams do between them (models/decoder/decoder.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/models/decoder/branch.h"
#include "octet/models/decoder/config.h"
#include "octet/nn/attention.h"
#include "octet/nn/mlp.h"
#include "octet/nn/moe.h"
#include "octet/parallel/schedule.h"

namespace octet::models {

// A family's names of modules.
struct DecoderModules {
  std::string embedding = "model.embed_tokens", final_norm = "model.norm", head = "lm_head";
  std::string positions = {};  // of learned positions
  std::string blocks = "model.layers";
  // Within a block:
  std::string attention = "self_attn", feed_forward = "mlp";
  BranchNorms attention_norms = {.before = "input_layernorm"}, feed_forward_norms = {.before = "post_attention_layernorm"};
  std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"}, up = {"gate_proj", "up_proj"};
  std::string output = "o_proj", down = "down_proj";
};

// The op that makes an operand of a linear. It writes FP8 codes instead of values if it can.
enum class Producer : std::uint8_t {
  none,           // the values already exist and the linear casts them itself
  norm,           // norm forward
  swiglu,         // SwiGLU forward
  gelu,           // GELU forward
  rope_backward,  // RoPE backward of packed QKV
  norm_backward,  // norm backward; writes codes and values, because the residual stream needs the values
  swiglu_backward,
  gelu_backward,
};

// A linear, and what the block does around it. The linear of all experts of a layer is one linear with a weight for each.
struct LinearUse {
  nn::LinearWeight* linear;                         // the first expert's
  const char* kind;                                 // "qkv", "o", "gate_up", "up", "down", "experts.gate_up", "head"
  Producer x = Producer::none, g = Producer::none;  // producers of the input X and of the output gradient G
  bool residual = false;                            // the product adds to the residual stream
};

// Everything that forward keeps for backward: the memory of a micro-batch in a block. T is this rank's share of the tokens
// (nn/sequence.h), D the model's dim.
struct BlockSaved {
  Tensor x;  // [T, D], the caller's
  BranchSaved branch1;
  nn::AttentionSaved attention;
  Tensor x1;  // [T, D]; x itself with a parallel residual
  BranchSaved branch2;
  nn::MlpSaved mlp;  // used without a mixture
  nn::MoeSaved moe;  // used with a mixture
};

// The tensors that the caller passes to the parts of a block, and the temporaries in the scratch that one part leaves for the
// next ones. A mark is the position to which the scratch is released when the temporaries are no longer needed.
struct BlockWork {
  // The caller sets these. y is absent in a recompute, and gy and gx are absent in a forward pass.
  Tensor x, y;          // [T, D]; an absent y is not computed
  nn::Operand gy = {};  // gradient of y, from output_gradient() of this block
  nn::Operand gx = {};  // gradient of x, from output_gradient() of the block before; its values are gy's own, overwritten
  // The forward parts set these.
  Tensor sum = {};   // x + a(x); absent if nobody reads it
  Tensor keys = {};  // of a context axis
  std::size_t keys_mark = 0;
  // The backward parts set these.
  nn::Operand gsum = {};
  Tensor gh1 = {}, gh2 = {};
  nn::AttentionBackward attention = {};
  std::size_t attention_mark = 0, moe_mark = 0;

  nn::MoeWork moe = {};  // set by the forward parts and by the backward parts
};

class Block {
 public:
  Block(const DecoderConfig& config, const DecoderModules& modules, std::int64_t layer, const Recipe& recipe,
        parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Makes the parts, and returns them in the order in which they run. `context`: several ranks share sequences. `lanes`: several
  // micro-batches take turns, so that rows of experts have their own stream.
  parallel::StepShape::BlockParts lay_out(bool context, bool lanes);
  // Run a part, by its number.
  void forward(int part, const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
    (this->*forward_[static_cast<std::size_t>(part)].run)(scope, saved, work);
  }
  void backward(int part, const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const {
    (this->*backward_[static_cast<std::size_t>(part)].run)(scope, saved, work);
  }

  // Returns the gradient of y for its producer to write. Its values are `g`; `memory` is as in nn::Quantizer::gradient.
  nn::Operand output_gradient(const nn::Scope& scope, const Tensor& g, const Quantized* memory) const;

  bool is_mixture() const { return moe_ != nullptr; }
  const nn::Moe& mixture() const { return *moe_; }
  // Returns the linears in the order of the forward pass.
  std::vector<nn::LinearWeight*> linears();
  // Returns the same linears, and what this block does around them.
  std::vector<LinearUse> uses();
  // Call it after linears have been given adapters.
  void serve_adapters();

 private:
  struct Part {
    parallel::Part part;
    void (Block::*run)(const nn::Scope&, BlockSaved&, BlockWork&) const;
  };
  // Runs a part that belongs to the mixture or to attention alone.
  template <auto kPart>
  void of_mixture(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  template <auto kPart>
  void of_attention(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  // Forward. What backward needs goes to `saved`, whose tensors lie in the stash.
  void qkv(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void keys(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void attention(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void feed_forward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  // The parts that replace the feed-forward layer if the block has a mixture (nn/moe.h).
  void route(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void experts(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void combine(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  // Backward.
  void feed_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void combine_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void route_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void output_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;
  void qkv_backward(const nn::Scope& scope, BlockSaved& saved, BlockWork& work) const;

  // Allocates the gradients that the branch of the feed-forward layer produces.
  void begin_feed_backward(const nn::Scope& scope, BlockWork& work) const;

  std::int64_t dim_;
  bool parallel_;
  // In the order of the forward pass, which is the order of the parameters.
  Branch branch1_;
  nn::Attention attention_;
  Branch branch2_;
  nn::Mlp& feed() { return moe_ ? moe_->mlp() : *mlp_; }
  std::unique_ptr<nn::Mlp> mlp_;
  std::unique_ptr<nn::Moe> moe_;  // instead of mlp_
  std::vector<Part> forward_, backward_;
};

}  // namespace octet::models
