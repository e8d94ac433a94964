#include <map>

#include "models/config_cases.h"
#include "support/tiny_model.h"

namespace octet::models {
namespace {

json tiny_olmo2() {
  return {{"model_type", "olmo2"},   {"vocab_size", 96},       {"hidden_size", 64},
          {"intermediate_size", 80}, {"num_hidden_layers", 2}, {"num_attention_heads", 16}};
}

// The defaults of Olmo2Config in transformers 5.
TEST(Olmo2Config, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_olmo2(), "x");
  EXPECT_EQ(c.family, "olmo2");
  EXPECT_EQ(c.kv_heads, 16);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.init_std, 0.02);
  EXPECT_EQ(c.qk_norm, nn::QkNorm::whole);
  EXPECT_FALSE(c.qkv_bias || c.output_bias || c.mlp_bias || c.tied_head);
}

// The config.json of OLMo-2-1124-7B as it was published.
TEST(Olmo2Config, ReadsWhatWasPublished) {
  const json published = {{"architectures", {"Olmo2ForCausalLM"}},
                          {"attention_bias", false},
                          {"attention_dropout", 0.0},
                          {"eos_token_id", 100257},
                          {"hidden_act", "silu"},
                          {"hidden_size", 4096},
                          {"initializer_range", 0.02},
                          {"intermediate_size", 11008},
                          {"max_position_embeddings", 4096},
                          {"model_type", "olmo2"},
                          {"num_attention_heads", 32},
                          {"num_hidden_layers", 32},
                          {"num_key_value_heads", 32},
                          {"pad_token_id", 100277},
                          {"rms_norm_eps", 1e-06},
                          {"rope_scaling", nullptr},
                          {"rope_theta", 500000},
                          {"tie_word_embeddings", false},
                          {"torch_dtype", "float32"},
                          {"use_cache", false},
                          {"vocab_size", 100352}};
  const DecoderConfig c = parse_config(published, "x");
  EXPECT_EQ(c.parameters(), 7298617344);
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.eos, std::vector<std::int64_t>{100257});
  EXPECT_EQ(c.pad, 100277);
}

TEST(Olmo2Config, WhatIsWrittenIsReadBack) {
  for (const bool bias : {false, true}) {
    DecoderConfig c = parse_config(tiny_olmo2(), "x");
    c.kv_heads = 4;
    c.head_dim = 6;
    c.qkv_bias = c.output_bias = bias;
    const json written = written_and_read_back(c);
    EXPECT_EQ(written["architectures"], json({"Olmo2ForCausalLM"}));
    EXPECT_EQ(written["attention_bias"], bias);
  }
}

TEST(Olmo2Names, AreThoseOfTransformers) {
  Decoder model(testing::tiny_olmo2_config(), testing::recipe_named("bf16"));
  std::map<std::string, Shape> shapes;
  for (const parallel::NameEntry& entry : names_of(model)) shapes[entry.external] = entry.shape;
  const std::string layer = "model.layers.1.";
  for (const auto& [name, shape] : std::map<std::string, Shape>{{"self_attn.q_proj.weight", {32, 32}},
                                                                {"self_attn.k_proj.weight", {16, 32}},
                                                                {"self_attn.v_proj.weight", {16, 32}},
                                                                {"self_attn.o_proj.weight", {32, 32}},
                                                                {"self_attn.q_norm.weight", {32}},
                                                                {"self_attn.k_norm.weight", {16}},
                                                                {"post_attention_layernorm.weight", {32}},
                                                                {"mlp.gate_proj.weight", {48, 32}},
                                                                {"mlp.up_proj.weight", {48, 32}},
                                                                {"mlp.down_proj.weight", {32, 48}},
                                                                {"post_feedforward_layernorm.weight", {32}}}) {
    ASSERT_TRUE(shapes.count(layer + name)) << name;
    EXPECT_EQ(shapes[layer + name], shape) << name;
  }
  EXPECT_EQ(shapes.size(), 2u * 11 + 3);
}

}  // namespace
}  // namespace octet::models
