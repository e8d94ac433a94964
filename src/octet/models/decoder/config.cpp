#include "octet/models/decoder/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/base/require.h"

namespace octet::models {

namespace {

// The most weights that the layers of a model may have. Their masters, values, gradients and moments take fewer than 2^64 bytes.
constexpr std::int64_t kMostWeights = 1'000'000'000'000'000'000;

// Returns the number of weights in the matrices of a layer. For a mixture, these are those of `experts` experts and of the
// router.
std::int64_t matrices_of_layer(const DecoderConfig& c, bool mixture, std::int64_t experts) {
  const std::int64_t attention = c.dim * c.head_dim * (2 * c.heads + 2 * c.kv_heads), matrix = (c.gelu ? 2 : 3) * c.dim;
  if (!mixture) return attention + matrix * c.ffn;
  return attention + experts * matrix * c.ffn_of_expert() + c.experts * c.dim;
}

// Returns the same for all layers.
std::int64_t matrices(const DecoderConfig& c, std::int64_t experts) {
  const std::int64_t mixtures = c.mixtures();
  return (c.layers - mixtures) * matrices_of_layer(c, false, experts) + mixtures * matrices_of_layer(c, true, experts);
}

// Returns the number of heads whose dims have a weight in the norms of Q and K.
std::int64_t normed_heads(const DecoderConfig& c) {
  switch (c.qk_norm) {
    case nn::QkNorm::none:
      return 0;
    case nn::QkNorm::head:
      return 2;
    case nn::QkNorm::whole:
      return c.heads + c.kv_heads;
  }
  return 0;
}

void check_range(const char* key, std::int64_t value, std::int64_t largest, const std::string& source) {
  demand(value > 0 && value <= largest, ExitCode::data, source, ": ", key, " = ", value, ": must be between 1 and ", largest);
}

}  // namespace

double DecoderConfig::output_init_std() const { return init_std / std::sqrt(2.0 * static_cast<double>(layers)); }

std::int64_t DecoderConfig::mixtures_before(std::int64_t layer) const {
  std::int64_t count = 0;
  for (std::int64_t before = 0; before < layer; ++before) count += is_mixture(before);
  return count;
}

std::int64_t DecoderConfig::parameters() const {
  const std::int64_t a_norm = norm == nn::NormKind::layer ? 2 * dim : dim;
  const std::int64_t biases =
      (qkv_bias ? (heads + 2 * kv_heads) * head_dim : 0) + (output_bias ? dim : 0) + (mlp_bias ? (gelu ? 1 : 2) * ffn + dim : 0);
  return matrices(*this, experts) + layers * (biases + normed_heads(*this) * head_dim + 2 * a_norm) + a_norm +
         vocab * dim * (tied_head ? 1 : 2) + (learned_positions ? max_position * dim : 0);
}

double DecoderConfig::train_flops_per_token(std::int64_t seq_len, double per_weight) const {
  const std::int64_t weights = matrices(*this, experts_per_token) + vocab * dim;
  // Tokens that a token sees in all layers, on average: half the sequence, without the triangle of those behind its window.
  const auto length = static_cast<double>(seq_len);
  double seen = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const double behind = window(layer) > 0 ? std::max(0.0, length - static_cast<double>(window(layer))) : 0.0;
    seen += 0.5 * (length - behind * behind / length);
  }
  // Q Kᵀ and P V: 2 products of 2 H K operations per token and token seen forward, and twice that backward.
  const double attention = 12.0 * static_cast<double>(heads * head_dim) * seen;
  return per_weight * static_cast<double>(weights) + attention;
}

void check_layers(std::int64_t layers, const char* key, const std::string& source) { check_range(key, layers, 1 << 13, source); }

void check_dim(std::int64_t dim, const std::string& source) { check_range("hidden_size", dim, 1 << 20, source); }

void check(const DecoderConfig& c, const std::string& source) {
  // Far beyond any model, and small enough that no size computed from them overflows. The weights of many large experts would, so
  // they are bounded together.
  const auto within = [&](const char* name, std::int64_t value, std::int64_t largest) {
    check_range(name, value, largest, source);
  };
  within("vocab_size", c.vocab, 1 << 24);
  check_dim(c.dim, source);
  within("intermediate_size", c.ffn, 1 << 22);
  check_layers(c.layers, "num_hidden_layers", source);
  within("num_attention_heads", c.heads, 1 << 12);
  within("num_key_value_heads", c.kv_heads, 1 << 12);
  within("head_dim", c.head_dim, 1 << 12);
  within("max_position_embeddings", c.max_position, 1 << 30);
  if (c.sliding_window != 0) within("sliding_window", c.sliding_window, 1 << 30);
  demand(c.sees_all.empty() || static_cast<std::int64_t>(c.sees_all.size()) == c.layers, ExitCode::data, source,
         ": layer_types has ", c.sees_all.size(), " entries for num_hidden_layers = ", c.layers);
  if (c.experts != 0) {
    within("number of experts", c.experts, 1 << 12);
    if (c.expert_ffn != 0) within("moe_intermediate_size", c.expert_ffn, 1 << 22);
    demand(c.mixtures() > 0, ExitCode::data, source, ": no layer has experts");
    within("num_experts_per_tok", c.experts_per_token, c.experts);
    demand(c.router_balance >= 0, ExitCode::data, source, ": router_aux_loss_coef = ", c.router_balance,
           ": must not be negative");
    demand(c.router_z >= 0, ExitCode::data, source, ": router_z_loss_coef = ", c.router_z, ": must not be negative");
    const double rate = c.router_bias_rate.value_or(0);
    demand(rate >= 0, ExitCode::data, source, ": router_bias_update_rate = ", rate, ": must not be negative");
    const std::int64_t weights = matrices_of_layer(c, true, c.experts);
    demand(weights <= kMostWeights / c.layers, ExitCode::data, source, ": ", c.layers, " layers of ", weights,
           " weights: a model may have at most ", kMostWeights);
  }
  demand(c.heads % c.kv_heads == 0, ExitCode::data, source, ": num_attention_heads = ", c.heads,
         " is not a multiple of num_key_value_heads = ", c.kv_heads);
  demand(c.head_dim % 2 == 0, ExitCode::data, source, ": head_dim = ", c.head_dim, ": must be even (rotary halves)");
  const std::int64_t rotated = c.rotated_dims();
  demand(rotated > 0 && rotated % 2 == 0 && rotated <= c.head_dim, ExitCode::data, source, ": ", rotated,
         " dims to rotate of heads of ", c.head_dim, ": must be even and positive, and no more than there are (rotary halves)");
  demand(c.rope_theta > 0, ExitCode::data, source, ": rope_theta = ", c.rope_theta, ": must be positive");
  const char* const epsilon = c.norm == nn::NormKind::layer ? "layer_norm_eps" : "rms_norm_eps";
  demand(c.norm_epsilon > 0, ExitCode::data, source, ": ", epsilon, " = ", c.norm_epsilon, ": must be positive");
  demand(c.norm_epsilon >= std::numeric_limits<float>::min(), ExitCode::data, source, ": ", epsilon, " = ", c.norm_epsilon,
         ": too small for FP32");
  demand(c.init_std >= 0, ExitCode::data, source, ": initializer_range = ", c.init_std, ": must not be negative");
}

}  // namespace octet::models
