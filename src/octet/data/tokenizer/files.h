// Finds the files of a tokenizer and copies them into a model's folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace octet::data {

// Returns the file that make_tokenizer(spec) reads: `spec` itself, or tokenizer.json or tokenizer.model of the directory `spec`. Returns
// nothing for `byte`, for "" (an unknown tokenizer) and if there is no such file.
std::optional<std::filesystem::path> tokenizer_file(std::string_view spec);

// Returns Tokenizer::hash() of a tokenizer made from `file`. Throws Error{data} if it cannot be read.
std::string tokenizer_hash(const std::filesystem::path& file);

// Copies `file` to `directory` as tokenizer.json or tokenizer.model, whichever fits its contents, and the files next to it.
// Each copy is written atomically. Throws Error{data} if a file cannot be read and Error{internal} if the disk is full.
void copy_tokenizer_files(const std::filesystem::path& file, const std::filesystem::path& directory);
// Copies those of tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja, vocab.json and
// merges.txt that are in the folder `from`. Other programs need them, and the last two may be a tokenizer that Octet does not
// read.
void copy_files_beside_tokenizer(const std::filesystem::path& from, const std::filesystem::path& directory);

}  // namespace octet::data
