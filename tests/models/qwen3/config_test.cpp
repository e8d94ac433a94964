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
  EXPECT_TRUE(c.head_norm);
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

}  // namespace
}  // namespace octet::models
