#include <map>

#include "models/config_cases.h"
#include "support/tiny_model.h"

namespace octet::models {
namespace {

json tiny_phi3() {
  return {{"model_type", "phi3"},    {"vocab_size", 96},       {"hidden_size", 64},
          {"intermediate_size", 80}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}};
}
json phi3_with(const char* key, json value) { return models::with(tiny_phi3(), key, std::move(value)); }

// The defaults of Phi3Config in transformers 5.
TEST(Phi3Config, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_phi3(), "x");
  EXPECT_EQ(c.family, "phi3");
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rotated_dims(), 16);
  EXPECT_EQ(c.max_position, 4096);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_FALSE(c.qkv_bias || c.output_bias || c.mlp_bias || c.tied_head);
}

// The config.json of Phi-4, and that of Phi-3-mini-4k, as they were published, without what a program does with them.
TEST(Phi3Config, ReadsWhatWasPublished) {
  const json common = {{"architectures", {"Phi3ForCausalLM"}},
                       {"attention_bias", false},
                       {"attention_dropout", 0.0},
                       {"embd_pdrop", 0.0},
                       {"hidden_act", "silu"},
                       {"initializer_range", 0.02},
                       {"model_type", "phi3"},
                       {"resid_pdrop", 0.0},
                       {"rms_norm_eps", 1e-05},
                       {"rope_scaling", nullptr},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"},
                       {"use_cache", true}};
  json phi4 = common, mini = common;
  phi4.update({{"hidden_size", 5120},
               {"intermediate_size", 17920},
               {"max_position_embeddings", 16384},
               {"num_attention_heads", 40},
               {"num_hidden_layers", 40},
               {"num_key_value_heads", 10},
               {"original_max_position_embeddings", 16384},
               {"rope_theta", 250000},
               {"sliding_window", nullptr},
               {"vocab_size", 100352}});
  mini.update({{"hidden_size", 3072},
               {"intermediate_size", 8192},
               {"max_position_embeddings", 4096},
               {"num_attention_heads", 32},
               {"num_hidden_layers", 32},
               {"num_key_value_heads", 32},
               {"original_max_position_embeddings", 4096},
               {"rope_theta", 10000.0},
               {"sliding_window", 2047},
               {"vocab_size", 32064}});
  const DecoderConfig a = parse_config(phi4, "x"), b = parse_config(mini, "x");
  EXPECT_EQ(a.parameters(), 14659507200);
  EXPECT_EQ(a.sliding_window, 0);
  EXPECT_EQ(a.head_dim, 128);
  EXPECT_EQ(b.parameters(), 3821079552);
  EXPECT_EQ(b.sliding_window, 2047);
  EXPECT_EQ(b.head_dim, 96);
}

TEST(Phi3Config, ReadsTheShareOfAHeadThatIsRotated) {
  EXPECT_EQ(parse_config(phi3_with("partial_rotary_factor", 0.75), "x").rotary_dim, 12);
  EXPECT_EQ(
      parse_config(
          phi3_with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 700.0}, {"partial_rotary_factor", 0.5}}), "x")
          .rotary_dim,
      8);
  EXPECT_EQ(refusal(phi3_with("partial_rotary_factor", 1.5)), "partial_rotary_factor = 1.5: must be above 0, and 1 at most");
}

TEST(Phi3Config, WhatIsWrittenIsReadBack) {
  for (const std::int64_t rotated : {4, 10, 16}) {
    DecoderConfig c = parse_config(phi3_with("sliding_window", 9), "x");
    c.rotary_dim = rotated;
    c.kv_heads = 2;
    const json written = written_and_read_back(c);
    EXPECT_EQ(written["architectures"], json({"Phi3ForCausalLM"}));
    EXPECT_EQ(written["sliding_window"], 9);
  }
  EXPECT_EQ(written_and_read_back(parse_config(tiny_phi3(), "x"))["sliding_window"], json());
}

TEST(Phi3Config, RefusesWhatOctetDoesNotCompute) {
  const json longrope = {{"type", "longrope"}, {"long_factor", {1.0, 2.0}}, {"short_factor", {1.0, 1.0}}};
  EXPECT_EQ(refusal(phi3_with("rope_scaling", longrope)),
            "rope_scaling: type \"longrope\" is not supported (default, linear, llama3, yarn)");
  EXPECT_EQ(refusal(phi3_with("rope_scaling", {{"type", "linear"}, {"factor", 4.0}})),
            "rope_scaling of type \"linear\" is not supported: transformers knows only longrope for phi3, and octet does not");
  EXPECT_EQ(refusal(phi3_with("resid_pdrop", 0.1)), "resid_pdrop = 0.1 is not supported: octet trains without dropout (0)");
}

TEST(Phi3Names, AreThoseOfTransformers) {
  Decoder model(testing::tiny_phi3_config(), testing::recipe_named("bf16"));
  std::map<std::string, Shape> shapes;
  for (const parallel::NameEntry& entry : names_of(model)) shapes[entry.external] = entry.shape;
  const std::string layer = "model.layers.1.";
  for (const auto& [name, shape] : std::map<std::string, Shape>{{"input_layernorm.weight", {32}},
                                                                {"self_attn.qkv_proj.weight", {64, 32}},
                                                                {"self_attn.o_proj.weight", {32, 32}},
                                                                {"post_attention_layernorm.weight", {32}},
                                                                {"mlp.gate_up_proj.weight", {96, 32}},
                                                                {"mlp.down_proj.weight", {32, 48}}}) {
    ASSERT_TRUE(shapes.count(layer + name)) << name;
    EXPECT_EQ(shapes[layer + name], shape) << name;
  }
  EXPECT_EQ(shapes.size(), 2u * 6 + 3);
}

// PEFT adapts the modules of transformers, so a fused one has one A and one B.
TEST(Phi3Names, AdaptersAreThoseOfPeft) {
  Decoder model(testing::tiny_phi3_config(), testing::recipe_named("bf16"), {}, {}, {}, 0,
                {.rank = 4, .targets = {"qkv_proj", "gate_up_proj"}});
  std::map<std::string, Shape> shapes;
  for (const parallel::NameEntry& entry : adapter_names(model)) shapes[entry.external] = entry.shape;
  const std::string layer = "base_model.model.model.layers.1.";
  EXPECT_EQ(shapes.at(layer + "self_attn.qkv_proj.lora_A.weight"), Shape({4, 32}));
  EXPECT_EQ(shapes.at(layer + "self_attn.qkv_proj.lora_B.weight"), Shape({64, 4}));
  EXPECT_EQ(shapes.at(layer + "mlp.gate_up_proj.lora_A.weight"), Shape({4, 32}));
  EXPECT_EQ(shapes.at(layer + "mlp.gate_up_proj.lora_B.weight"), Shape({96, 4}));
  EXPECT_EQ(shapes.size(), 8u);
}

}  // namespace
}  // namespace octet::models
