// Engines for models small enough to differentiate by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/recipes/registry.h"
#include "octet/train/engine.h"

namespace octet::testing {

models::DecoderConfig tiny_config();

// GPT-NeoX: another norm, another feed-forward layer, biases, and a part of each head rotated.
models::DecoderConfig tiny_gpt_neox_config(bool parallel_residual);

// "fp64" is a recipe of the tests alone.
Recipe recipe_named(const std::string& name, const recipes::Options& options = {});

train::EngineOptions tiny_options(const std::string& recipe);

std::unique_ptr<train::Engine> make_engine(const train::EngineOptions& options, std::uint64_t seed = 7,
                                           DeviceKind device = DeviceKind::cpu);

struct Tokens {
  std::vector<std::int32_t> tokens, targets, document_starts;
  data::Batch batch() const {
    return {.first_sample = 0, .tokens = tokens, .targets = targets, .document_starts = document_starts};
  }
};

Tokens random_tokens(std::int64_t count, std::int64_t vocab, std::uint32_t subject = 0);

// Documents of 1 to 15 tokens, and one at the beginning of every sequence.
std::vector<std::int32_t> random_document_starts(std::int64_t count, std::int64_t seq_len, std::uint32_t subject = 0);

inline std::vector<std::string> all_recipes() { return recipes::recipe_names(); }

// The bytes of a tensor in host memory.
std::vector<std::uint8_t> bytes_of_tensor(const Tensor& tensor);

}  // namespace octet::testing
