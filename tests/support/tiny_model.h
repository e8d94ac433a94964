// Makes engines for models that are small enough for finite differences.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/recipes/registry.h"
#include "octet/train/engine.h"

namespace octet::testing {

models::DecoderConfig tiny_config();

// A GPT-NeoX, which differs from Llama in its norm and feed-forward layer, has biases and rotates only a part of each head.
models::DecoderConfig tiny_gpt_neox_config(bool parallel_residual);
// One with learned positions, scores that are not scaled, a tied head, and a window in its second layer.
models::DecoderConfig tiny_gpt_neo_config();
// One with a norm of heads, biases of attention, heads wider than dim / heads, and a window in its first layer.
models::DecoderConfig tiny_qwen3_config();
// The same with four experts in each layer, of which a token takes two.
models::DecoderConfig tiny_qwen3_moe_config();

// One whose norms come after attention and the feed-forward layer, with norms over all of Q and all of K.
models::DecoderConfig tiny_olmo2_config();

// One whose Q, K and V have one tensor, and so have gate and up; with a window, and a part of each head that is rotated.
models::DecoderConfig tiny_phi3_config();

// A model of every family, and of what else a block may be: tests that ask something of every architecture begin here.
struct NamedModel {
  std::string name;
  models::DecoderConfig config;
};
std::vector<NamedModel> tiny_models();

// A name of the registry; "fp64", which exists only in tests; or fp8_delayed with attention = "fp8" ("fp8_delayed_attention") or
// "fp8_forward" ("fp8_delayed_attention_forward").
Recipe recipe_named(const std::string& name, const recipes::Options& options = {});

train::EngineOptions tiny_options(const std::string& recipe);

std::unique_ptr<train::Engine> make_engine(const train::EngineOptions& options, std::uint64_t seed = 7,
                                           DeviceKind device = DeviceKind::cpu);

// Adds adapters of rank 4.
train::EngineOptions adapted(train::EngineOptions options, std::vector<std::string> targets = {models::kAllLinear});
// Adapters start with B at zero, where A has no gradient. Gives B random numbers.
void randomise_b(train::Engine& engine);

struct Tokens {
  std::vector<std::int32_t> tokens, targets, document_starts;
  data::Batch batch(std::int64_t first_sample = 0) const {
    return {.first_sample = first_sample, .tokens = tokens, .targets = targets, .document_starts = document_starts};
  }
};

Tokens random_tokens(std::int64_t count, std::int64_t vocab, std::uint32_t subject = 0);

// Returns the starts of documents of 1 to 15 tokens. A document begins at the beginning of every sequence.
std::vector<std::int32_t> random_document_starts(std::int64_t count, std::int64_t seq_len, std::uint32_t subject = 0);

inline std::vector<std::string> all_recipes() { return recipes::recipe_names(); }
// All recipes, and the precisions of attention that one of them can have.
inline std::vector<std::string> all_precisions() {
  std::vector<std::string> result = all_recipes();
  result.emplace_back("fp8_delayed_attention");
  return result;
}

// Returns the bytes of a tensor that lies in host memory.
std::vector<std::uint8_t> bytes_of_tensor(const Tensor& tensor);

}  // namespace octet::testing
