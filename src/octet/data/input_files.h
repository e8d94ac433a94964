// The inputs of `octet data prepare`: which files, in which order, and what is in each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"

namespace octet::data {

// What --format names. `automatic` goes by the name, without .gz or .zst: *.jsonl and *.ndjson are JSONL, *.parquet (as it is)
// is Parquet, the rest is text. Tokens must be named, or asked for (format_of_tokens in token_file.h).
enum class InputFormat { automatic, text, jsonl, parquet, llmc, nanogpt };
inline bool holds_tokens(InputFormat format) { return format == InputFormat::llmc || format == InputFormat::nanogpt; }
InputFormat input_format(const std::filesystem::path& path, InputFormat chosen);

// The files of some inputs, in order; the rules are those of PrepareOptions::inputs.
class InputFiles {
 public:
  // Throws Error{data} for an input that does not exist, a pattern that matches nothing and what is neither a file nor a folder;
  // Error{config} for a kind of file that cannot be read, if it is named, and for what is of a corpus.
  InputFiles(std::vector<std::filesystem::path> inputs, const CorpusPaths& output);

  struct File {
    std::filesystem::path path;
    std::int64_t bytes = 0;  // as it lies, packed or not; 0 for standard input
    bool named = false;      // by the user, not found in a folder
    bool is_standard_input() const { return path == "-"; }
    std::string name() const { return is_standard_input() ? "standard input" : path.string(); }
  };
  std::optional<File> next();

 private:
  struct Folder {
    std::vector<std::filesystem::path> entries;  // sorted
    std::size_t next = 0;
  };
  void enter(const std::filesystem::path& folder);
  bool is_output(const std::filesystem::path& path) const;

  std::vector<std::filesystem::path> inputs_;
  std::size_t next_input_ = 0;
  std::vector<Folder> open_;  // from an input down to the folder being read
  std::filesystem::path output_folder_;
  std::vector<std::string> output_names_;  // and those of what stands in for them meanwhile
};

// Why a file of this name cannot be read, "" when it may be: archives and packed Parquet, which a user may expect to work.
std::string unreadable_kind(const std::filesystem::path& path);

}  // namespace octet::data
