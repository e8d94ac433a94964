// Functions that the tests of all families' config.json share.
#pragma once

#include <gtest/gtest.h>

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
  EXPECT_TRUE(a == b) << config_json(a, DType::bf16).dump(1) << config_json(b, DType::bf16).dump(1);
}

// Writes a config and checks that it is read back unchanged. Returns the JSON that was written.
inline json written_and_read_back(const DecoderConfig& c) {
  const testing::TemporaryFolder folder;
  write_config(folder.path(), c);
  expect_equal(read_config(folder.path()), c);
  return json::parse(read_file(folder / "config.json"));
}

}  // namespace octet::models
