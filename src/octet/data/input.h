// The reading side of `octet data prepare`: which files, and how they are cut into tasks. Constant memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// The files of some inputs, in order; the rules are those of PrepareOptions::inputs.
class InputFiles {
 public:
  // Throws Error{data} for an input that does not exist or is neither a file nor a folder.
  InputFiles(std::vector<std::filesystem::path> inputs, const CorpusPaths& output);

  struct File {
    std::filesystem::path path;
    std::int64_t bytes = 0;
    bool named = false;  // by the user, not found in a folder
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
  std::vector<std::string> output_names_;
};

enum class InputFormat { text, jsonl };
InputFormat input_format(const std::filesystem::path& path);

// A piece of a document (text) or one line (JSONL) in `Task::bytes`.
struct Segment {
  std::size_t begin = 0, end = 0;
  bool ends_document = true;
  std::int64_t line = 0;  // JSONL: from 1
};

struct Task {
  InputFormat format = InputFormat::text;
  std::string bytes;
  std::vector<Segment> segments;
  std::string file;        // JSONL: all segments are of this file
  std::int64_t files = 0;  // files that end in this task
  std::int64_t skipped_files = 0;
  std::int64_t bytes_passed = 0;   // of the input, skipped files included
  std::int64_t skipped_bytes = 0;  // of skipped files
};

// Fills tasks one after another.
class TaskReader {
 public:
  // The tokenizer says where a document may be cut. A JSONL line, and a piece of text between two such places, may have at
  // most `max_piece` bytes (else Error{data}).
  TaskReader(InputFiles files, const Tokenizer& tokenizer, std::size_t task_bytes = kTaskBytes,
             std::size_t max_piece = kMaxPiece);

  // False when all input has been passed.
  bool next(Task& task);

 private:
  static constexpr std::size_t kTaskBytes = 1 << 20;
  static constexpr std::size_t kMaxPiece = std::size_t{1} << 30;

  bool open_next(Task& task);
  void read_text(Task& task);
  void read_jsonl(Task& task);
  bool is_text();
  std::size_t read_more(std::string& to, std::size_t bytes);

  InputFiles files_;
  const Tokenizer& tokenizer_;
  const std::size_t task_bytes_, max_piece_;
  std::optional<InputFiles::File> file_;
  std::ifstream stream_;
  bool at_end_ = false;  // of the current file's bytes
  std::string rest_;     // read, but not yet in a task
  std::int64_t line_ = 0;
};

}  // namespace octet::data
