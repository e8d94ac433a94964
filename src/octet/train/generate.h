// Generates text with a model, one token at a time.
#pragma once

#include <functional>

#include "octet/data/tokenizer/tokenizer.h"
#include "octet/train/engine.h"

namespace octet::train {

struct GenerateOptions {
  std::string model;  // its name in messages
  std::int64_t max_tokens = 200;
  double temperature = 0.8;  // 0: always takes the most likely token
  std::uint64_t seed = 0;
};

// Continues `ids` and calls `on_token` with each new id, until max_tokens tokens are generated or `on_token` returns false. The
// engine needs EngineOptions::whole_logits. A new id is one of the tokenizer's or of DecoderConfig::eos. Each new token is
// computed from the last seq_len tokens without a key/value cache, so this suits only small models. Throws Error{not_finite} if
// the model computes a logit that is NaN or infinite.
void generate(Engine& engine, const data::Tokenizer& tokenizer, std::vector<std::int32_t> ids, const GenerateOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace octet::train
