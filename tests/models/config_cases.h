// Functions that the tests of all families' config.json share.
#pragma once

#include <gtest/gtest.h>

#include <tuple>

#include "octet/base/file.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/registry.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::models {

using nlohmann::json;

// Returns the config with one key set to another value.
inline json with(json config, const char* key, json value) {
  config[key] = std::move(value);
  return config;
}

// Returns the error for a config.json that describes no model, or "" if it describes one.
inline std::string refusal(const json& config) {
  const std::string place = "DIR/config.json: ";
  const std::string message = testing::error_if_any(ExitCode::data, [&] { parse_config(config, "DIR/config.json"); });
  EXPECT_TRUE(message.empty() || message.starts_with(place)) << message;
  return message.empty() ? "" : message.substr(place.size());
}

inline void expect_equal(const DecoderConfig& a, const DecoderConfig& b) {
  const auto numbers = [](const DecoderConfig& c) {
    return std::tie(c.vocab, c.dim, c.ffn, c.layers, c.heads, c.kv_heads, c.head_dim, c.max_position, c.sliding_window,
                    c.rotary_dim, c.rope_theta, c.norm_epsilon, c.init_std, c.experts, c.experts_per_token, c.expert_ffn,
                    c.attention_scale, c.router_balance, c.router_z);
  };
  const auto kinds = [](const DecoderConfig& c) {
    return std::tie(c.family, c.norm, c.gelu, c.qkv_bias, c.output_bias, c.mlp_bias, c.head_norm, c.sees_all, c.router_normalise,
                    c.learned_positions, c.dense_layers, c.parallel_residual, c.tied_head, c.output_router_logits, c.tokenizer,
                    c.bos, c.eos);
  };
  const auto scaling = [](const DecoderConfig& c) {
    return c.rope_scaling ? write_rope_scaling(*c.rope_scaling) : nlohmann::ordered_json();
  };
  EXPECT_TRUE(numbers(a) == numbers(b) && kinds(a) == kinds(b) && scaling(a) == scaling(b))
      << config_json(a, DType::bf16).dump(1) << config_json(b, DType::bf16).dump(1);
}

// Writes a config and checks that it is read back unchanged. Returns the JSON that was written.
inline json written_and_read_back(const DecoderConfig& c) {
  const testing::TemporaryFolder folder;
  write_config(folder.path(), c);
  expect_equal(read_config(folder.path()), c);
  return json::parse(read_file(folder / "config.json"));
}

}  // namespace octet::models
