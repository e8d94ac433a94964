#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_qwen3() {
  return {{"model_type", "qwen3"},   {"vocab_size", 96},       {"hidden_size", 60},
          {"intermediate_size", 80}, {"num_hidden_layers", 2}, {"num_attention_heads", 32}};
}

// The defaults of Qwen3Config in transformers 5.
TEST(Qwen3Config, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_qwen3(), "x");
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.head_dim, 128) << "which does not follow from hidden_size";
  EXPECT_EQ(c.max_position, 32768);
  EXPECT_EQ(c.qk_norm, nn::QkNorm::head);
  EXPECT_FALSE(c.qkv_bias || c.output_bias || c.mlp_bias || c.tied_head);
}

TEST(Qwen3Config, WhatIsWrittenIsReadBack) {
  json config = tiny_qwen3();
  config["attention_bias"] = true;
  config["head_dim"] = 24;
  config["tie_word_embeddings"] = true;
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 1;
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const json written = written_and_read_back(parse_config(config, "x"));
  EXPECT_EQ(written["architectures"], json({"Qwen3ForCausalLM"}));
  EXPECT_EQ(written["attention_bias"], true);
}

// Heads of 6 numbers: an odd width is refused.
json tiny_moe() {
  json config = tiny_qwen3();
  config["model_type"] = "qwen3_moe";
  config["num_attention_heads"] = 10;
  config["num_key_value_heads"] = 2;
  config["num_hidden_layers"] = 4;
  return config;
}
json moe_with(const char* key, json value) { return models::with(tiny_moe(), key, std::move(value)); }

// The defaults of Qwen3MoeConfig in transformers 5.
TEST(Qwen3MoeConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_moe(), "x");
  EXPECT_EQ(c.head_dim, 6) << "hidden_size / heads, unlike Qwen3";
  EXPECT_EQ(c.experts, 128);
  EXPECT_EQ(c.experts_per_token, 8);
  EXPECT_EQ(c.expert_ffn, 768);
  EXPECT_FALSE(c.router_normalise);
  EXPECT_EQ(c.router_balance, 0.001);
  EXPECT_EQ(c.mixtures(), 4);
}

TEST(Qwen3MoeConfig, AllLayersHaveTheWindow) {
  const json config = with(moe_with("use_sliding_window", true), "sliding_window", 8);
  const DecoderConfig c = parse_config(with(config, "max_window_layers", 3), "x");
  for (std::int64_t layer = 0; layer < c.layers; ++layer) EXPECT_EQ(c.window(layer), 8);
  const json written = written_and_read_back(c);
  EXPECT_FALSE(written.contains("max_window_layers") || written.contains("layer_types"));
}

// transformers 5 writes the number of experts under Mixtral's name.
TEST(Qwen3MoeConfig, ReadsTheNumberOfExpertsUnderBothNames) {
  EXPECT_EQ(parse_config(moe_with("num_local_experts", 16), "x").experts, 16);
  EXPECT_EQ(parse_config(with(moe_with("num_local_experts", 16), "num_experts", 32), "x").experts, 32);
}

TEST(Qwen3MoeConfig, SomeLayersAreDense) {
  json config = with(moe_with("decoder_sparse_step", 2), "head_dim", 8);
  EXPECT_EQ(parse_config(config, "x").dense_layers, (std::vector<bool>{true, false, true, false}));
  config["mlp_only_layers"] = {3};
  config["norm_topk_prob"] = true;
  config["moe_intermediate_size"] = 24;
  config["router_bias_update_rate"] = 0.0;  // biases that stay as they are
  const DecoderConfig c = parse_config(config, "x");
  EXPECT_EQ(c.mixtures(), 1);
  const json written = written_and_read_back(c);
  EXPECT_EQ(written["mlp_only_layers"], (json{0, 2, 3}));
  EXPECT_EQ(written["norm_topk_prob"], true);
  EXPECT_EQ(written["router_bias_update_rate"], 0.0);

  EXPECT_EQ(refusal(moe_with("mlp_only_layers", {4})), "mlp_only_layers has 4: must be below num_hidden_layers = 4");
  EXPECT_EQ(refusal(moe_with("mlp_only_layers", 1)), "mlp_only_layers = 1: must be a list");
  EXPECT_EQ(refusal(moe_with("num_hidden_layers", -1)), "num_hidden_layers = -1: must be between 1 and 8192");
  EXPECT_EQ(refusal(moe_with("decoder_sparse_step", 0)), "decoder_sparse_step = 0: must be positive");
}

}  // namespace
}  // namespace octet::models
