// Finds the token that ends a document, from the files next to a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// Returns the first that exists of: "eos_token" in tokenizer_config.json, "eos_token" in special_tokens_map.json, "eos_token_id" in
// config.json (the first of a list), and definition.end_of_document. Throws Error{data} if the token is not in the vocabulary.
std::optional<std::int32_t> end_of_document(const std::filesystem::path& folder, const BpeDefinition& definition);

}  // namespace octet::data
