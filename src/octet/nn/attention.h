// Self-attention with rotary positions: QKV in one linear, grouped-query attention, output linear. Tokens are this rank's part of
// each sequence; attention alone sees what the other ranks of scope.context hold (context_attention.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/nn/context_attention.h"
#include "octet/nn/linear.h"

namespace octet::nn {

// D model, H query heads, G key/value heads, K head dim. On the t ranks of the tensor axis H and G are of this rank, each of
// which sees all T tokens; h, y, residual and their gradients are its share of them, [T / t, D].
struct AttentionSaved {
  Operand qkv_in;
  Tensor qkv;  // [T, (H + 2G) K], rotated
  Tensor o;    // [T, H K], of which backward makes what the output linear's wgrad multiplies
  Tensor lse;  // [H, T], as context_attention.h lays it out
};

class Attention {
 public:
  struct Options {
    std::string name;                                               // "model.layers.0.self_attn"
    std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"};  // its modules: these, or one of all three
    std::string output = "o_proj";
    std::int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0;  // of the whole layer
    std::int64_t window = 0;      // tokens that a token sees at most, itself among them; 0: all before it
    std::int64_t rotary_dim = 0;  // of each head, rotated (kernels/rope); 0: all
    bool bias = false;            // of both linears
    double init_std = 0.02, output_init_std = 0.02;
  };
  Attention(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Allocates h for its producer.
  Operand input(const Scope& scope, std::int64_t tokens) const {
    return qkv_.x().allocate(scope, scope.stash, tokens, forward_reads(scope));
  }
  // y = attention(h) + residual; y is overwritten, what backward needs goes to the stash. `rope_table` [positions, R] F32, R
  // being the dims that are rotated. An absent y is not computed: a recompute needs `saved` alone. `between` is called when all
  // keys and values are there, before attention itself.
  void forward(const Scope& scope, const Tensor& rope_table, const Operand& h, const Tensor& residual, const Tensor& y,
               AttentionSaved& saved, const std::function<void()>& between) const;
  // Makes again what selective checkpointing left out: first h, for its producer, then the rest. scope.record must be nothing.
  Operand rebuild_input(const Scope& scope, std::int64_t tokens) const {
    return qkv_.x().allocate(scope, scope.scratch, tokens, Reads::wgrad);
  }
  void rebuild(const Scope& scope, const Operand& h, AttentionSaved& saved) const {
    saved.qkv_in = qkv_.x().complete(scope, h, scope.scratch, Reads::wgrad);
  }
  // K and V of the ranks of scope.context, for backward, from which much may be enqueued before. Takes scratch.
  WholeKv gather_ahead(const Scope& scope, const AttentionSaved& saved) const;
  // gh [T, D] is overwritten. gy comes from output().g().gradient(). `between` is called before the gradient of attention itself,
  // behind the products of the output linear; with context behind dgrad alone: wgrad hides what ranks exchange afterwards.
  void backward(const Scope& scope, const Tensor& rope_table, const Operand& gy, const AttentionSaved& saved, const WholeKv& kv,
                const Tensor& gh, const std::function<void()>& between) const;

  Linear& qkv() { return qkv_; }
  Linear& output() { return output_; }
  const Linear& output() const { return output_; }

 private:
  kernels::AttentionShape shape(const Scope& scope) const;
  std::int64_t q_cols() const { return heads_ * options_.head_dim; }
  std::int64_t kv_cols() const { return kv_heads_ * options_.head_dim; }

  Options options_;
  std::int64_t heads_, kv_heads_;  // of this rank
  Linear qkv_, output_;
};

}  // namespace octet::nn
