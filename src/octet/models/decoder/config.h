// The sizes and options of a decoder of any family, and numbers that follow from them: counts of parameters and operations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/kernels/gelu/gelu.h"
#include "octet/kernels/rope/rope.h"
#include "octet/nn/norm.h"

namespace octet::models {

// The architecture of a decoder.
struct DecoderConfig {
  std::string family = "llama";
  std::int64_t vocab = 0;  // V
  std::int64_t dim = 0;    // D
  std::int64_t ffn = 0;    // F
  std::int64_t layers = 0;
  std::int64_t heads = 0;           // H
  std::int64_t kv_heads = 0;        // G
  std::int64_t head_dim = 0;        // K
  std::int64_t max_position = 0;    // longest sequence
  std::int64_t sliding_window = 0;  // largest number of tokens that a token sees, including itself; 0: no limit
  std::vector<bool> sees_all = {};  // of each layer: whether the window does not apply to it; empty: it applies to all
  std::int64_t rotary_dim = 0;      // dims of each head that are rotated; 0: all
  bool learned_positions = false;   // a vector for each position is added to the embedding, and heads are not rotated
  double attention_scale = 0;       // factor of the scores; 0: 1 / sqrt(head_dim)
  double rope_theta = 10000.0;
  std::optional<kernels::RopeScaling> rope_scaling;
  nn::NormKind norm = nn::NormKind::rms;
  double norm_epsilon = 1e-5;
  std::optional<kernels::Gelu> gelu;           // of a feed-forward layer without a gate; absent: SwiGLU
  bool qkv_bias = false, output_bias = false;  // of attention's linears
  bool mlp_bias = false;                       // of the linears of a dense feed-forward layer
  nn::QkNorm qk_norm = nn::QkNorm::none;
  bool parallel_residual = false;              // attention and feed-forward layer read the same x
  bool tied_head = false;
  std::int64_t experts = 0;  // E of a mixture; 0: a dense feed-forward layer
  std::int64_t experts_per_token = 0;
  std::int64_t expert_ffn = 0;              // F of an expert; 0: ffn
  bool router_normalise = true;             // the weights of a token's experts add up to 1 (kernels/router)
  std::vector<bool> dense_layers = {};      // of each layer: whether it has no mixture; empty: all have one
  double router_balance = 0, router_z = 0;  // coefficients of the router's losses, of their mean over layers
  // The router chooses experts by score + bias, and the bias changes by this much after a step; absent: there is no bias.
  std::optional<double> router_bias_rate;
  bool output_router_logits = false;  // transformers adds the loss weighted by router_balance only if this is set
  double init_std = 0.02;             // of the normal distribution that matrices start from
  std::string tokenizer;              // "byte"; empty: in files next to config.json
  // Ids of the tokens that precede a text, may end it and fill up a batch, for other programs; empty if they are not known.
  std::optional<std::int64_t> bos, pad;
  std::vector<std::int64_t> eos;

  // The init_std of the linears that write to the residual stream. It is smaller, so that the stream's variance does not grow
  // with depth (GPT-2).
  double output_init_std() const;
  // The window of a layer, as sliding_window.
  std::int64_t window(std::int64_t layer) const {
    return !sees_all.empty() && sees_all[static_cast<std::size_t>(layer)] ? 0 : sliding_window;
  }
  bool is_mixture(std::int64_t layer) const {
    return experts > 0 && (dense_layers.empty() || !dense_layers[static_cast<std::size_t>(layer)]);
  }
  // The number of layers with a mixture: in the whole model, and before this layer.
  std::int64_t mixtures() const { return mixtures_before(layers); }
  std::int64_t mixtures_before(std::int64_t layer) const;
  // F of an expert, and the number of dims of each head that are rotated, with 0 replaced by its default.
  std::int64_t ffn_of_expert() const { return expert_ffn > 0 ? expert_ffn : ffn; }
  std::int64_t rotated_dims() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  // The number of trained parameters, including all experts.
  std::int64_t parameters() const;
  // Floating-point operations of forward and backward per token of a sequence of `seq_len`: `per_weight` for each matrix weight
  // that a token uses, and those of attention after the causal mask and the window. Recompute does not count. In a frozen model
  // `per_weight` is 4, because no weight has a gradient; adapters do not count.
  double train_flops_per_token(std::int64_t seq_len, double per_weight = 6) const;

  bool operator==(const DecoderConfig&) const = default;
};

// Throw Error{data} for an impossible number of layers, read under `key`, and for an impossible hidden_size. Families call them
// before they make lists with an entry for each layer, and before they compute with the size.
void check_layers(std::int64_t layers, const char* key, const std::string& source);
void check_dim(std::int64_t dim, const std::string& source);
// Throws Error{data} naming `source` for impossible sizes (a head count that the key/value heads do not divide, an odd
// head_dim, ...).
void check(const DecoderConfig& config, const std::string& source);

}  // namespace octet::models
