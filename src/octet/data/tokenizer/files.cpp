#include "octet/data/tokenizer/files.h"

#include <span>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"

namespace octet::data {
namespace fs = std::filesystem;

std::optional<fs::path> tokenizer_file(std::string_view spec) {
  if (spec.empty()) return std::nullopt;  // an unknown tokenizer; without this check "" would mean the working directory
  const fs::path path(spec);
  if (is_file(path) && path.filename() != "config.json") return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (is_file(path / name)) return path / name;
  }
  return std::nullopt;
}

std::string tokenizer_hash(const fs::path& file) {
  RunningChecksum sum;
  sum.update(read_file(file));
  return sum.hex();
}

void copy_tokenizer_files(const fs::path& file, const fs::path& directory) {
  const std::string bytes = read_file(file);
  const std::size_t begin = bytes.find_first_not_of(" \t\r\n");
  const std::string name = begin != std::string::npos && bytes[begin] == '{' ? "tokenizer.json" : "tokenizer.model";
  write_file_atomically(directory / name, bytes);
  // Does not copy both tokenizer.json and tokenizer.model: the other one may define a different tokenizer.
  copy_files_beside_tokenizer(file.parent_path(), directory);
}

void copy_files_beside_tokenizer(const fs::path& from, const fs::path& directory) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                           "vocab.json", "merges.txt"}) {
    if (is_file(from / name)) write_file_atomically(directory / name, read_file(from / name));
  }
}

}  // namespace octet::data
