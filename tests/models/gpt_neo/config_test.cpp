#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_gpt_neo() {
  return {{"model_type", "gpt_neo"}, {"vocab_size", 96}, {"hidden_size", 64}, {"num_layers", 4}, {"num_heads", 16}};
}
json gpt_neo_with(const char* key, json value) { return models::with(tiny_gpt_neo(), key, std::move(value)); }

// The defaults of GPTNeoConfig in transformers 5, where layers take turns, too; it has that default only for 24 layers.
TEST(GptNeoConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_gpt_neo(), "x");
  EXPECT_EQ(c.layers, 4);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.ffn, 256);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.sliding_window, 256);
  EXPECT_EQ(c.sees_all, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.gelu, kernels::Gelu::tanh);
  EXPECT_EQ(c.attention_scale, 1.0);
  EXPECT_TRUE(c.learned_positions && c.tied_head && c.output_bias && c.mlp_bias);
  EXPECT_FALSE(c.qkv_bias);
}

TEST(GptNeoConfig, WhatIsWrittenIsReadBack) {
  json config = gpt_neo_with("attention_types", json::array({json::array({json::array({"local", "global"}), 2})}));
  config["intermediate_size"] = 80;
  config["window_size"] = 7;
  config["activation_function"] = "gelu";
  config["tie_word_embeddings"] = false;
  const DecoderConfig c = parse_config(config, "x");
  EXPECT_EQ(c.sees_all, (std::vector<bool>{false, true, false, true}));
  const json written = written_and_read_back(c);
  EXPECT_EQ(written["architectures"], json({"GPTNeoForCausalLM"}));
  EXPECT_EQ(written["attention_layers"], (json{"local", "global", "local", "global"}));
}

TEST(GptNeoConfig, RefusesWhatMakesNoModel) {
  EXPECT_EQ(refusal(gpt_neo_with("attention_layers", {"global"})), "attention_layers names 1 layers, and num_layers = 4");
  EXPECT_EQ(refusal(gpt_neo_with("attention_layers", {"global", "local", "dense", "local"})),
            "attention_layers has \"dense\": must be \"global\" or \"local\"");
  EXPECT_EQ(refusal(gpt_neo_with("attention_types", {"global"})),
            "attention_types has \"global\": must be a list of kinds and a number");
  EXPECT_EQ(refusal(gpt_neo_with("layer_norm_epsilon", 0)), "layer_norm_epsilon = 0: must be positive");
  EXPECT_EQ(refusal(gpt_neo_with("num_layers", -1)), "num_layers = -1: must be between 1 and 8192");
  EXPECT_EQ(refusal(gpt_neo_with("hidden_size", std::int64_t{1} << 62)),
            "hidden_size = 4611686018427387904: must be between 1 and 1048576");
  EXPECT_EQ(refusal(gpt_neo_with("window_size", 0)), "window_size = 0: must be positive");
  EXPECT_EQ(refusal(gpt_neo_with("resid_dropout", 0.1)),
            "resid_dropout = 0.1 is not supported: octet trains without dropout (0)");
  EXPECT_EQ(refusal(gpt_neo_with("activation_function", "silu")),
            "activation_function = \"silu\" is not supported (gelu, gelu_fast, gelu_new, gelu_pytorch_tanh)");
}

}  // namespace
}  // namespace octet::models
