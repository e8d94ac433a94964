// [model]: the architecture, or where it comes from. Part of config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/base/fields.h"

namespace octet::train {

struct RopeScalingConfig {
  std::optional<std::string> rope_type;
  std::optional<double> factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, attention_factor;
  std::optional<std::int64_t> original_max_position_embeddings;
};
template <FieldsOf<RopeScalingConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "rope_type",
              .help = "Method that stretches RoPE to longer sequences. If not set: that of the preset or directory, otherwise "
                      "llama3.",
              .choices = "llama3 | linear | yarn"},
        c.rope_type);
  visit(Field{.name = "factor",
              .help = "Factor by which wavelengths are stretched: long ones, or with linear all. If not set: llama3 8, yarn the "
                      "ratio of the lengths.",
              .range = kAtLeastOne},
        c.factor);
  visit(Field{.name = "low_freq_factor",
              .help = "llama3: wavelengths above the original length divided by this are stretched in full.",
              .range = kPositive},
        c.low_freq_factor);
  visit(Field{.name = "high_freq_factor",
              .help = "llama3: wavelengths below the original length divided by this stay as they are.",
              .range = kPositive},
        c.high_freq_factor);
  visit(Field{.name = "beta_fast",
              .help = "yarn: frequencies that turn more often within the original length are kept; 32 if not set.",
              .range = kPositive},
        c.beta_fast);
  visit(Field{.name = "beta_slow",
              .help = "yarn: frequencies that turn less often within the original length are stretched in full; 1 if not set.",
              .range = kPositive},
        c.beta_slow);
  visit(Field{.name = "attention_factor",
              .help = "yarn: cos and sin are multiplied by it; 0.1 ln(factor) + 1 if not set.",
              .range = kPositive},
        c.attention_factor);
  visit(Field{.name = "original_max_position_embeddings",
              .help = "llama3 and yarn: longest sequence before stretching.",
              .value = "tokens",
              .range = kAtLeastOne},
        c.original_max_position_embeddings);
}

// One of: a preset, a model directory, or the architecture itself under its Hugging Face names. With a preset or a directory
// the architecture keys that are given replace theirs. decoder_config() puts it together.
struct ModelConfig {
  std::string config;     // "" when not used
  std::string init_from;  // "" when not used
  std::optional<std::string> model_type;
  std::optional<std::int64_t> vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      num_key_value_heads, head_dim, max_position_embeddings, sliding_window, num_local_experts, num_experts_per_tok,
      max_window_layers, num_experts, moe_intermediate_size, decoder_sparse_step;
  std::optional<double> rope_theta, rms_norm_eps, initializer_range, router_aux_loss_coef, router_z_loss_coef,
      router_bias_update_rate;
  std::optional<bool> tie_word_embeddings;
  std::optional<std::string> tokenizer, hidden_act;
  std::optional<double> layer_norm_eps, rotary_pct, rotary_emb_base, partial_rotary_factor;
  std::optional<bool> norm_topk_prob, use_parallel_residual, attention_bias, mlp_bias, use_sliding_window;
  std::optional<RopeScalingConfig> rope_scaling;
};
template <FieldsOf<ModelConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "config",
              .help = "Architecture: a preset of configs/, another run's .toml or a config.json.",
              .value = "PRESET"},
        c.config);
  visit(Field{.name = "init_from",
              .help = "Hugging Face directory to start from, or s3://BUCKET/PREFIX; with only config.json there, the weights "
                      "start at random.",
              .value = "DIR",
              .s3 = true},
        c.init_from);
  visit(
      Field{.name = "model_type",
            .help = "Family: llama (the default), mistral, mixtral, qwen2, qwen3, qwen3_moe, gpt_neox, gpt_neo, olmo2 or phi3."},
      c.model_type);
  visit(Field{.name = "vocab_size", .help = "Number of token ids.", .value = "tokens", .range = kAtLeastOne}, c.vocab_size);
  visit(Field{.name = "hidden_size", .help = "Width of the residual stream.", .range = kAtLeastOne}, c.hidden_size);
  visit(Field{.name = "intermediate_size", .help = "Width inside the MLP.", .range = kAtLeastOne}, c.intermediate_size);
  visit(Field{.name = "num_hidden_layers", .help = "Number of blocks.", .range = kAtLeastOne}, c.num_hidden_layers);
  visit(Field{.name = "num_attention_heads", .help = "Number of query heads.", .range = kAtLeastOne}, c.num_attention_heads);
  visit(Field{.name = "num_key_value_heads",
              .help = "Number of key and value heads. If not set: as many as query heads; qwen2 and qwen3 32; qwen3_moe 4.",
              .range = kAtLeastOne},
        c.num_key_value_heads);
  visit(Field{.name = "head_dim",
              .help = "Width of a head. If not set: hidden_size / num_attention_heads; qwen3 128.",
              .range = kAtLeastOne},
        c.head_dim);
  visit(Field{.name = "max_position_embeddings",
              .help = "Longest sequence that the model allows.",
              .value = "tokens",
              .range = kAtLeastOne},
        c.max_position_embeddings);
  visit(Field{.name = "sliding_window",
              .help = "Mistral, Qwen, Phi-3: number of tokens that a token sees, itself included; 0 means all before it.",
              .value = "tokens",
              .range = kNotNegative},
        c.sliding_window);
  visit(Field{.name = "use_sliding_window", .help = "Qwen: some layers have the sliding window."}, c.use_sliding_window);
  visit(Field{.name = "max_window_layers",
              .help = "Qwen: index of the first layer with a sliding window.",
              .range = kNotNegative},
        c.max_window_layers);
  visit(Field{.name = "num_local_experts", .help = "Mixtral: number of experts in each layer.", .range = kAtLeastOne},
        c.num_local_experts);
  visit(Field{.name = "num_experts_per_tok",
              .help = "Mixtral, Qwen3-MoE: number of experts that each token goes to.",
              .range = kAtLeastOne},
        c.num_experts_per_tok);
  visit(Field{.name = "num_experts", .help = "Qwen3-MoE: number of experts in a layer.", .range = kAtLeastOne}, c.num_experts);
  visit(Field{.name = "moe_intermediate_size", .help = "Qwen3-MoE: width inside an expert.", .range = kAtLeastOne},
        c.moe_intermediate_size);
  visit(Field{.name = "norm_topk_prob", .help = "Qwen3-MoE: the weights of a token's experts add up to 1."}, c.norm_topk_prob);
  visit(Field{.name = "decoder_sparse_step",
              .help = "Qwen3-MoE: every n-th layer has experts, and the others are dense.",
              .range = kAtLeastOne},
        c.decoder_sparse_step);
  visit(Field{.name = "router_aux_loss_coef",
              .help = "Mixtral, Qwen3-MoE: weight of the loss that balances the experts.",
              .range = kNotNegativeFp32},
        c.router_aux_loss_coef);
  visit(Field{.name = "router_z_loss_coef",
              .help = "Mixtral, Qwen3-MoE: weight of the loss that keeps the router's logits small.",
              .range = kNotNegativeFp32},
        c.router_z_loss_coef);
  visit(Field{.name = "router_bias_update_rate",
              .help = "Mixtral, Qwen3-MoE: balances the experts without a loss: after each step the bias with which an expert is "
                      "chosen moves by this much. 0 keeps the biases. If not set, there are none.",
              .range = kNotNegativeFp32},
        c.router_bias_update_rate);
  visit(Field{.name = "rope_theta", .help = "Base of the RoPE frequencies.", .range = kPositive}, c.rope_theta);
  visit(Field{.name = "rms_norm_eps", .help = "Epsilon of RMSNorm.", .range = kEpsilon}, c.rms_norm_eps);
  visit(Field{.name = "initializer_range", .help = "Standard deviation of the initial weights.", .range = kNotNegativeFp32},
        c.initializer_range);
  visit(Field{.name = "tie_word_embeddings", .help = "Embedding and head share one weight."}, c.tie_word_embeddings);
  visit(Field{.name = "tokenizer", .help = "\"byte\", or not set: the tokenizer files of the model directory."}, c.tokenizer);
  visit(Field{.name = "hidden_act", .help = "GPT-NeoX: gelu (the default), gelu_new, gelu_fast or gelu_pytorch_tanh."},
        c.hidden_act);
  visit(Field{.name = "layer_norm_eps", .help = "GPT-NeoX: epsilon of LayerNorm.", .range = kEpsilon}, c.layer_norm_eps);
  visit(Field{.name = "rotary_pct", .help = "GPT-NeoX: share of each head that RoPE rotates.", .range = kPositive}, c.rotary_pct);
  visit(Field{.name = "partial_rotary_factor", .help = "Phi-3: share of each head that RoPE rotates.", .range = kPositive},
        c.partial_rotary_factor);
  visit(Field{.name = "rotary_emb_base", .help = "GPT-NeoX: base of the RoPE frequencies.", .range = kPositive},
        c.rotary_emb_base);
  visit(Field{.name = "use_parallel_residual", .help = "GPT-NeoX: attention and MLP read the same input."},
        c.use_parallel_residual);
  visit(Field{.name = "attention_bias", .help = "Llama, Qwen3, GPT-NeoX, OLMo 2: attention's linears have a bias."},
        c.attention_bias);
  visit(Field{.name = "mlp_bias", .help = "Llama: the MLP's linears have a bias."}, c.mlp_bias);
  visit(Field{.name = "rope_scaling", .help = "RoPE stretched to longer sequences."}, c.rope_scaling);
}

}  // namespace octet::train
