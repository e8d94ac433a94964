#include <cmath>

#include "models/config_cases.h"

namespace octet::models {
namespace {

json mixtral(const json& keys) {
  json config = {{"model_type", "mixtral"}, {"vocab_size", 96},       {"hidden_size", 64},
                 {"intermediate_size", 80}, {"num_hidden_layers", 2}, {"num_attention_heads", 16}};
  config.update(keys);
  return config;
}

// The defaults of MixtralConfig in transformers 5.
TEST(MixtralConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(mixtral(json::object()), "x");
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_EQ(c.experts, 8);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_EQ(c.router_balance, 0.001);
  EXPECT_EQ(c.router_z, 0.0);
  EXPECT_FALSE(c.router_bias_rate.has_value());
  EXPECT_FALSE(c.output_router_logits);
}

// The published sizes are 46.7 and 140.6 billion parameters. Each token uses two of the eight experts, which makes 12.9 and 39.2
// billion parameters.
TEST(MixtralConfig, CountsParametersAndWork) {
  const DecoderConfig small = parse_config(mixtral({{"vocab_size", 32000},
                                                    {"hidden_size", 4096},
                                                    {"intermediate_size", 14336},
                                                    {"num_hidden_layers", 32},
                                                    {"num_attention_heads", 32}}),
                                           "x");
  EXPECT_EQ(small.parameters(), 46702792704);
  const DecoderConfig large = parse_config(mixtral({{"vocab_size", 32768},
                                                    {"hidden_size", 6144},
                                                    {"intermediate_size", 16384},
                                                    {"num_hidden_layers", 56},
                                                    {"num_attention_heads", 48}}),
                                           "x");
  EXPECT_EQ(large.parameters(), 140630071296);
  // Each weight that a token uses takes 6 operations. The embedding's look-up and the norms take none, and attention to a single
  // token hardly any.
  const double met = 12879925248.0 - 32000.0 * 4096 - 65 * 4096;
  EXPECT_NEAR(small.train_flops_per_token(1), 6 * met, 12.0 * 32 * 4096);
}

TEST(MixtralConfig, WhatIsWrittenIsRead) {
  const DecoderConfig c = parse_config(mixtral({{"num_local_experts", 3},
                                                {"num_experts_per_tok", 3},
                                                {"router_aux_loss_coef", 0.5},
                                                {"router_z_loss_coef", 0.25},
                                                {"router_bias_update_rate", 0.125},
                                                {"output_router_logits", true},
                                                {"sliding_window", 17}}),
                                       "x");
  EXPECT_EQ(c.family, "mixtral");
  EXPECT_EQ(c.experts, 3);
  EXPECT_EQ(c.experts_per_token, 3);
  EXPECT_EQ(c.router_balance, 0.5);
  EXPECT_EQ(c.router_z, 0.25);
  EXPECT_EQ(c.router_bias_rate, 0.125);
  EXPECT_TRUE(c.output_router_logits);
  EXPECT_EQ(c.sliding_window, 17);
  written_and_read_back(c);
}

TEST(MixtralConfig, WhatItCannotBeIsRefusedByName) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{{"num_local_experts", 0},
                                                                            {"num_local_experts", -8},
                                                                            {"num_experts_per_tok", 0},
                                                                            {"num_experts_per_tok", 9},
                                                                            {"router_aux_loss_coef", -1.0},
                                                                            {"router_z_loss_coef", -1.0},
                                                                            {"router_bias_update_rate", -1.0},
                                                                            {"router_jitter_noise", 0.1},
                                                                            {"attention_dropout", 0.1},
                                                                            {"sliding_window", -1}}) {
    EXPECT_EQ(refusal(mixtral({{key, value}})).rfind(key, 0), 0u) << key << " = " << value;
  }
}

// A model may have each of these sizes, but layers of 4096 such experts have 2^68 weights.
TEST(MixtralConfig, RefusesMoreWeightsThan64BitsCount) {
  json config = mixtral({{"hidden_size", 1 << 20}, {"intermediate_size", 1 << 22}, {"num_hidden_layers", 1 << 13}});
  config["num_attention_heads"] = 1 << 12;
  const auto with_experts = [&](std::int64_t experts) { return with(config, "num_local_experts", experts); };
  const double attention = std::ldexp(1.0, 20 + 8) * 2 * (4096 + 8), expert = 3 * std::ldexp(1.0, 42);
  const auto layer = [&](double experts) { return attention + experts * (expert + std::ldexp(1.0, 20)); };
  EXPECT_EQ(refusal(with_experts(10)), concat("8192 layers of ", static_cast<std::int64_t>(layer(10)),
                                              " weights: a model may have at most 1000000000000000000"));
  EXPECT_EQ(refusal(with_experts(1 << 12)), concat("8192 layers of ", static_cast<std::int64_t>(layer(1 << 12)),
                                                   " weights: a model may have at most 1000000000000000000"));
  const double largest = static_cast<double>(parse_config(with_experts(9), "x").parameters());
  EXPECT_NEAR(largest, 8192 * layer(9), 1e-6 * largest);
  EXPECT_LT(18 * largest, std::ldexp(1.0, 64)) << "bytes of master, value, gradient and moments";
}

}  // namespace
}  // namespace octet::models
