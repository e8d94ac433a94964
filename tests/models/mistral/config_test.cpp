#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_mistral() {
  return {{"model_type", "mistral"}, {"vocab_size", 96},       {"hidden_size", 64},
          {"intermediate_size", 80}, {"num_hidden_layers", 2}, {"num_attention_heads", 16}};
}
json mistral_with(const char* key, json value) { return models::with(tiny_mistral(), key, std::move(value)); }

// The defaults of MistralConfig in transformers 5.
TEST(MistralConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_mistral(), "x");
  EXPECT_EQ(c.family, "mistral");
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_EQ(c.init_std, 0.02);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(c.sliding_window, 4096);
}

TEST(MistralConfig, ANullIsAWord) {
  EXPECT_EQ(parse_config(mistral_with("sliding_window", nullptr), "x").sliding_window, 0);
  EXPECT_EQ(parse_config(mistral_with("num_key_value_heads", nullptr), "x").kv_heads, 16);
  EXPECT_EQ(parse_config(mistral_with("head_dim", nullptr), "x").head_dim, 4);
  EXPECT_EQ(parse_config(mistral_with("sliding_window", 17), "x").sliding_window, 17);
}

// The config.json of versions 0.1 and 0.3 as they were published.
TEST(MistralConfig, ReadsWhatWasPublished) {
  const json common = {{"architectures", {"MistralForCausalLM"}},
                       {"bos_token_id", 1},
                       {"eos_token_id", 2},
                       {"hidden_act", "silu"},
                       {"hidden_size", 4096},
                       {"initializer_range", 0.02},
                       {"intermediate_size", 14336},
                       {"max_position_embeddings", 32768},
                       {"model_type", "mistral"},
                       {"num_attention_heads", 32},
                       {"num_hidden_layers", 32},
                       {"num_key_value_heads", 8},
                       {"rms_norm_eps", 1e-05},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"},
                       {"use_cache", true}};
  json first = common, third = common;
  first.update({{"rope_theta", 10000.0}, {"sliding_window", 4096}, {"vocab_size", 32000}});
  third.update({{"rope_theta", 1000000.0}, {"sliding_window", nullptr}, {"vocab_size", 32768}});
  const DecoderConfig a = parse_config(first, "x"), b = parse_config(third, "x");
  EXPECT_EQ(a.parameters(), 7241732096);
  EXPECT_EQ(a.sliding_window, 4096);
  EXPECT_EQ(b.parameters(), 7248023552);
  EXPECT_EQ(b.sliding_window, 0);
  EXPECT_EQ(b.head_dim, 128);
}

TEST(MistralConfig, WhatIsWrittenIsReadBack) {
  for (const std::int64_t window : {0, 12}) {
    DecoderConfig c = parse_config(tiny_mistral(), "x");
    c.sliding_window = window;
    c.rope_theta = 1e6;
    c.head_dim = 6;
    const json written = written_and_read_back(c);
    EXPECT_EQ(written["architectures"], json({"MistralForCausalLM"}));
    EXPECT_EQ(written["sliding_window"], window > 0 ? json(window) : json());
    EXPECT_FALSE(written.contains("mlp_bias"));
  }
}

TEST(MistralConfig, RefusesWhatIsNoWindow) {
  EXPECT_EQ(refusal(mistral_with("sliding_window", 0)), "sliding_window = 0: must be positive, or null");
  EXPECT_EQ(refusal(mistral_with("sliding_window", -4)), "sliding_window = -4: must be positive, or null");
  EXPECT_EQ(refusal(mistral_with("sliding_window", "all")), "sliding_window = \"all\": must be a whole number");
  EXPECT_EQ(refusal(mistral_with("sliding_window", std::int64_t{1} << 31)),
            "sliding_window = 2147483648: must be between 1 and 1073741824");
  EXPECT_EQ(refusal(mistral_with("hidden_act", "gelu")), "hidden_act = \"gelu\" is not supported (silu)");
  EXPECT_EQ(refusal(mistral_with("num_key_value_heads", 5)),
            "num_attention_heads = 16 is not a multiple of num_key_value_heads = 5");
}

}  // namespace
}  // namespace octet::models
