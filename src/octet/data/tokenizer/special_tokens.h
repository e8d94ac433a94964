// Which token ends a document: what files beside a tokenizer say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// The first that is there: "eos_token" of tokenizer_config.json or special_tokens_map.json, "eos_token_id" of config.json (its
// first, of several), what the tokenizer's own file says. Throws Error{data} when it names no token of this tokenizer.
std::optional<std::int32_t> end_of_document(const std::filesystem::path& folder, const BpeDefinition& definition);

}  // namespace octet::data
