#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_qwen2() {
  return {{"model_type", "qwen2"},   {"vocab_size", 96},       {"hidden_size", 64},
          {"intermediate_size", 80}, {"num_hidden_layers", 4}, {"num_attention_heads", 32}};
}
json qwen2_with(const char* key, json value) { return models::with(tiny_qwen2(), key, std::move(value)); }

// The defaults of Qwen2Config in transformers 5.
TEST(Qwen2Config, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_qwen2(), "x");
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.head_dim, 2);
  EXPECT_EQ(c.max_position, 32768);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.output_bias || c.mlp_bias || c.qk_norm != nn::QkNorm::none || c.tied_head);
  EXPECT_EQ(c.sliding_window, 0);
}

// Published files name a window that they do not use.
TEST(Qwen2Config, AWindowThatIsNotUsedIsNone) {
  json config = qwen2_with("sliding_window", 131072);
  config["use_sliding_window"] = false;
  config["max_window_layers"] = 28;
  EXPECT_EQ(parse_config(config, "x").sliding_window, 0);
}

// As in transformers.
TEST(Qwen2Config, ANullIsNoWindow) {
  EXPECT_EQ(parse_config(with(qwen2_with("use_sliding_window", true), "sliding_window", nullptr), "x").sliding_window, 0);
  EXPECT_EQ(parse_config(qwen2_with("use_sliding_window", true), "x").sliding_window, 4096);
}

TEST(Qwen2Config, RefusesNumbersOfLayersThatNoListCouldHold) {
  for (const std::int64_t layers : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40}) {
    const json config = with(qwen2_with("use_sliding_window", true), "num_hidden_layers", layers);
    EXPECT_EQ(refusal(config), concat("num_hidden_layers = ", layers, ": must be between 1 and 8192"));
  }
}

TEST(Qwen2Config, LaterLayersHaveTheWindow) {
  json config = qwen2_with("use_sliding_window", true);
  config["sliding_window"] = 8;
  config["max_window_layers"] = 3;
  const DecoderConfig c = parse_config(config, "x");
  EXPECT_EQ(c.window(2), 0);
  EXPECT_EQ(c.window(3), 8);
  const json written = written_and_read_back(c);
  EXPECT_EQ(written["max_window_layers"], 3);

  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  const DecoderConfig alternating = parse_config(config, "x");
  EXPECT_EQ(alternating.window(0), 8);
  EXPECT_EQ(alternating.window(1), 0);
  EXPECT_EQ(written_and_read_back(alternating)["layer_types"], config["layer_types"]);

  EXPECT_EQ(refusal(with(config, "layer_types", {"full_attention"})), "layer_types has 1 entries for num_hidden_layers = 4");
  EXPECT_EQ(refusal(with(config, "layer_types", {"dense"})),
            "layer_types has \"dense\": must be \"full_attention\" or \"sliding_attention\"");
  EXPECT_EQ(refusal(with(config, "sliding_window", 0)), "sliding_window = 0: must be positive");
}

// A window hides less of the products of attention if some layers do not have it.
TEST(Qwen2Config, FlopsCountTheWindowOfEachLayer) {
  json config = qwen2_with("use_sliding_window", true);
  config["sliding_window"] = 16;
  const auto flops = [&](std::int64_t first) {
    return parse_config(with(config, "max_window_layers", first), "x").train_flops_per_token(1024);
  };
  EXPECT_NEAR(flops(2), (flops(0) + flops(4)) / 2, 1e-9 * flops(4));
  EXPECT_LT(flops(0), flops(4));
}

}  // namespace
}  // namespace octet::models
