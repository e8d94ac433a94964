// Text from a model, one token at a time.
#pragma once

#include <functional>

#include "octet/train/engine.h"

namespace octet::train {

struct GenerateOptions {
  std::int64_t max_tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::uint64_t seed = 0;
};

// Continues `ids`, calling `on_token` with each new id, until max_tokens or until it returns false. The engine has whole logits; it
// sees the last seq_len tokens, anew for each token (small models; there is no key/value cache).
void generate(Engine& engine, std::vector<std::int32_t> ids, const GenerateOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace octet::train
