// Which files are a tokenizer, and how they go along with a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace octet::data {

// The file that make_tokenizer(spec) reads: `spec` itself, or tokenizer.json or tokenizer.model of a directory. Nothing for
// `byte`, for "" (not known), and where there is none.
std::optional<std::filesystem::path> tokenizer_file(std::string_view spec);

// What Tokenizer::hash() of a tokenizer from this file is. Throws Error{data}.
std::string tokenizer_hash(const std::filesystem::path& file);

// Copies it under the name that others look for, and what stands beside it and belongs to it: the other of tokenizer.json and
// tokenizer.model, tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja. Each appears whole or
// not at all. Throws Error{data} where one cannot be read, Error{internal} for a full disk.
void copy_tokenizer_files(const std::filesystem::path& file, const std::filesystem::path& directory);

}  // namespace octet::data
