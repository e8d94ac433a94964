// The inputs of `octet data prepare`: which files there are, their order and their formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"

namespace octet::data {

// The choices of --format. `automatic` decides by the name, ignoring .gz and .zst: *.jsonl and *.ndjson are JSONL, *.parquet
// (uncompressed) is Parquet, any other file is text. It never chooses a token format; format_of_tokens() in token_file.h finds
// llm.c files.
enum class InputFormat { automatic, text, jsonl, parquet, llmc, nanogpt };
inline bool holds_tokens(InputFormat format) { return format == InputFormat::llmc || format == InputFormat::nanogpt; }
InputFormat input_format(const std::filesystem::path& path, InputFormat chosen);

// Lists the files of the inputs in order, by the rules of PrepareOptions::inputs.
class InputFiles {
 public:
  // Throws Error{data} if an input does not exist, is neither a file nor a folder, or is a pattern that matches nothing. Throws
  // Error{config} if the user names a file that cannot be read (unreadable_kind()), that belongs to the output or to a prepared
  // corpus, or names standard input twice.
  InputFiles(std::vector<std::filesystem::path> inputs, const CorpusPaths& output);

  struct File {
    std::filesystem::path path;
    std::int64_t bytes = 0;  // size of the file on disk; 0 for standard input
    bool named = false;      // true: named by the user; false: found in a folder
    bool is_standard_input() const { return path == "-"; }
    std::string name() const { return is_standard_input() ? "standard input" : path.string(); }
  };
  // Returns the next file, or nothing at the end. Throws Error{data} if a folder cannot be read, or holds a link that leads
  // nowhere.
  std::optional<File> next();
  // The links to folders that next() has left out so far.
  const std::vector<std::filesystem::path>& linked_folders() const { return linked_folders_; }

 private:
  struct Folder {
    std::vector<std::filesystem::path> entries;  // sorted
    std::size_t next = 0;
  };
  void enter(const std::filesystem::path& folder);
  bool is_output(const std::filesystem::path& path) const;

  std::vector<std::filesystem::path> inputs_;
  std::size_t next_input_ = 0;
  std::vector<Folder> open_;  // path from an input folder down to the folder being read
  std::vector<std::filesystem::path> linked_folders_;
  std::filesystem::path output_folder_;
  std::vector<std::string> output_names_;  // final names and names of part files
};

// Returns why a file with this name cannot be read, or "" if it can. Refuses archives, packed with .gz or .zst or not,
// compression other than these two, Arrow files and compressed Parquet.
std::string unreadable_kind(const std::filesystem::path& path);

}  // namespace octet::data
