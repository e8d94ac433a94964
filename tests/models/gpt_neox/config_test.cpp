#include <limits>

#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_gpt_neox() {
  return {{"model_type", "gpt_neox"}, {"vocab_size", 96},       {"hidden_size", 48},
          {"intermediate_size", 80},  {"num_hidden_layers", 2}, {"num_attention_heads", 3}};
}
json gpt_neox_with(const char* key, json value) { return models::with(tiny_gpt_neox(), key, std::move(value)); }

TEST(GptNeoxConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_gpt_neox(), "x");
  EXPECT_EQ(c.family, "gpt_neox");
  EXPECT_EQ(c.vocab, 96);
  EXPECT_EQ(c.dim, 48);
  EXPECT_EQ(c.ffn, 80);
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.heads, 3);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.rotary_dim, 4);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.norm, nn::NormKind::layer);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.init_std, 0.02);
  EXPECT_EQ(c.gelu, kernels::Gelu::exact);
  EXPECT_TRUE(c.parallel_residual);
  EXPECT_TRUE(c.qkv_bias && c.output_bias && c.mlp_bias);
  EXPECT_FALSE(c.tied_head);
  EXPECT_FALSE(c.rope_scaling);
}

TEST(GptNeoxConfig, WhatIsWrittenIsReadBack) {
  for (const bool full : {false, true}) {
    DecoderConfig c = parse_config(tiny_gpt_neox(), "x");
    c.max_position = 4096;
    c.rope_theta = 500000.1;
    c.norm_epsilon = 1.0 / 3e5;
    c.init_std = 0.1 + 0.2;
    c.tied_head = full;
    c.parallel_residual = !full;
    c.qkv_bias = c.output_bias = !full;
    c.mlp_bias = true;
    c.gelu = full ? kernels::Gelu::tanh : kernels::Gelu::exact;
    c.tokenizer = full ? "byte" : "";
    if (full) {
      c.rope_scaling = kernels::RopeScalingLlama3{
          .factor = 32.0 / 3.0, .low_freq_factor = 1.1, .high_freq_factor = 4.2, .original_max_position = 8191};
    }
    const json written = written_and_read_back(c);
    EXPECT_EQ(written["architectures"], json({"GPTNeoXForCausalLM"}));
    EXPECT_EQ(written["hidden_act"], full ? "gelu_pytorch_tanh" : "gelu");
  }
}

// The numbers of parameters of the models of Biderman et al. (2023), with and without embedding and head, from the table in their
// repository.
TEST(GptNeoxConfig, CountsPythiasParameters) {
  struct Size {
    std::int64_t layers, dim, heads, vocab, all, without;
  };
  for (const Size& size :
       {Size{6, 512, 8, 50304, 70426624, 18915328}, Size{12, 768, 12, 50304, 162322944, 85056000},
        Size{24, 1024, 16, 50304, 405334016, 302311424}, Size{16, 2048, 8, 50304, 1011781632, 805736448},
        Size{24, 2048, 16, 50304, 1414647808, 1208602624}, Size{32, 2560, 32, 50304, 2775208960, 2517652480},
        Size{32, 4096, 32, 50432, 6857302016, 6444163072}, Size{36, 5120, 40, 50688, 11846072320, 11327027200}}) {
    const DecoderConfig c = parse_config({{"model_type", "gpt_neox"},
                                          {"vocab_size", size.vocab},
                                          {"hidden_size", size.dim},
                                          {"intermediate_size", 4 * size.dim},
                                          {"num_hidden_layers", size.layers},
                                          {"num_attention_heads", size.heads}},
                                         "x");
    EXPECT_EQ(c.parameters(), size.all) << size.dim;
    EXPECT_EQ(c.parameters() - 2 * size.vocab * size.dim, size.without) << size.dim;
  }
}

// For two whole numbers, (a / b) * b rounded down may be one less than a. For example, 49 * (1.0 / 49) is less than 1.
TEST(GptNeoxConfig, EveryRotaryShareIsReadBack) {
  for (std::int64_t head_dim = 2; head_dim <= 256; head_dim += 2) {
    for (std::int64_t dims = 2; dims <= head_dim; dims += 2) {
      DecoderConfig c = parse_config(tiny_gpt_neox(), "x");
      c.heads = c.kv_heads = 1;
      c.dim = c.head_dim = head_dim;
      c.rotary_dim = dims;
      const json written = family_of("gpt_neox", "x").write(c);
      ASSERT_EQ(parse_config(written, "x").rotary_dim, dims) << "of " << head_dim;
    }
  }
}

TEST(GptNeoxConfig, ReadsRotationWhereverTransformersPutIt) {
  EXPECT_EQ(parse_config(gpt_neox_with("rotary_pct", 1.0), "x").rotary_dim, 16);
  EXPECT_EQ(parse_config(gpt_neox_with("rotary_pct", 0.4), "x").rotary_dim, 6) << "rounded down";
  EXPECT_EQ(parse_config(gpt_neox_with("rotary_emb_base", 500), "x").rope_theta, 500.0);
  const DecoderConfig c = parse_config(
      gpt_neox_with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 700.0}, {"partial_rotary_factor", 0.5}}), "x");
  EXPECT_EQ(c.rope_theta, 700.0);
  EXPECT_EQ(c.rotary_dim, 8);
  EXPECT_FALSE(c.rope_scaling);
  EXPECT_EQ(parse_config(gpt_neox_with("rope_scaling", {{"partial_rotary_factor", 0.5}}), "x").rotary_dim, 8);
}

TEST(GptNeoxConfig, KnowsActivationsByTheirNames) {
  for (const char* name : {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}) {
    EXPECT_EQ(parse_config(gpt_neox_with("hidden_act", name), "x").gelu, kernels::Gelu::tanh) << name;
  }
  EXPECT_EQ(parse_config(gpt_neox_with("hidden_act", "gelu"), "x").gelu, kernels::Gelu::exact);
  EXPECT_EQ(refusal(gpt_neox_with("hidden_act", "relu")),
            "hidden_act = \"relu\" is not supported (gelu, gelu_fast, gelu_new, gelu_pytorch_tanh)");
}

TEST(GptNeoxConfig, RefusesWhatOctetDoesNotCompute) {
  EXPECT_EQ(refusal(gpt_neox_with("attention_dropout", 0.1)),
            "attention_dropout = 0.1 is not supported: octet trains without dropout (0)");
  EXPECT_EQ(refusal(gpt_neox_with("hidden_dropout", 0.5)), "hidden_dropout = 0.5 is not supported: octet trains without dropout (0)");
  EXPECT_EQ(refusal(gpt_neox_with("attention_dropout", 0.0)), "");
  EXPECT_EQ(refusal(gpt_neox_with("rope_scaling", {{"type", "dynamic"}})),
            "rope_scaling: type \"dynamic\" is not supported (default, linear, llama3, yarn)");
}

TEST(GptNeoxConfig, RefusesWhatMakesNoModel) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    json config = tiny_gpt_neox();
    config.erase(key);
    EXPECT_EQ(refusal(config), concat("no ", key));
    EXPECT_EQ(refusal(gpt_neox_with(key, "12")), concat(key, " = \"12\": must be a whole number"));
  }
  EXPECT_EQ(refusal(gpt_neox_with("num_attention_heads", 5)), "hidden_size = 48 is not a multiple of num_attention_heads = 5");
  EXPECT_NE(refusal(gpt_neox_with("num_attention_heads", 0)), "");
  EXPECT_NE(refusal(gpt_neox_with("num_attention_heads", std::numeric_limits<std::int64_t>::min())), "");
  EXPECT_EQ(refusal(gpt_neox_with("layer_norm_eps", 0)), "layer_norm_eps = 0: must be positive");
  EXPECT_EQ(refusal(gpt_neox_with("rotary_pct", 0)), "rotary_pct = 0: must be above 0, and 1 at most");
  EXPECT_EQ(refusal(gpt_neox_with("rotary_pct", 1.5)), "rotary_pct = 1.5: must be above 0, and 1 at most");
  EXPECT_EQ(refusal(gpt_neox_with("rotary_pct", 0.01)), "rotary_pct = 0.01: rotates nothing of heads of 16");
  EXPECT_EQ(refusal(gpt_neox_with("rotary_pct", 0.2)),
            "3 dims to rotate of heads of 16: must be even and positive, and no more than there are (rotary halves)");
  EXPECT_EQ(refusal(gpt_neox_with("use_parallel_residual", 1)), "use_parallel_residual = 1: must be true or false");
}

}  // namespace
}  // namespace octet::models
