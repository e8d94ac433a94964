// Cuts the inputs of `octet data prepare` into tasks. Memory is that of the longest line or text that cannot be cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/byte_source.h"
#include "octet/data/input_files.h"
#include "octet/data/parquet/parquet_file.h"
#include "octet/data/text.h"
#include "octet/data/token_file.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// In `Task::bytes`: a piece of a document (text), one line (JSONL), one document (Parquet), or several whole ones (tokens).
struct Segment {
  std::size_t begin = 0, end = 0;
  bool ends_document = true;
  std::int64_t line = 0;  // JSONL, and rows of Parquet: from 1; tokens: the number of the first in its file
};

// How far the inputs have been put into tasks.
struct InputPosition {
  std::int64_t files = 0;       // passed
  std::int64_t bytes = 0;       // of the file after them, unpacked, behind the header; of Parquet: rows
  std::int64_t lines = 0;       // of that file, when it is JSONL
  std::int64_t open_bytes = 0;  // of Task::bytes_passed so far, those of that file
  // Of names and sizes: of all files passed, and of them with the file after them, 0 while bytes is. Below 2^56.
  std::int64_t files_sum = 0, open_sum = 0;
};

// Whether these inputs begin with the files that led there: folders may have changed while they were read.
bool leads_to(InputFiles files, const InputPosition& position);

struct Task {
  InputFormat format = InputFormat::text;
  std::string bytes;
  std::vector<Segment> segments;
  std::string file;        // but for text: all segments are of this file
  TokenFile tokens;        // of that file, when it holds tokens
  std::int64_t files = 0;  // files that end in this task
  std::int64_t skipped_files = 0;
  std::int64_t bytes_passed = 0;   // of the input as it lies, skipped files included
  std::int64_t skipped_bytes = 0;  // of skipped files
  InputPosition end;               // behind this task
};

// Fills tasks one after another.
class TaskReader {
 public:
  struct Options {
    InputFormat format = InputFormat::automatic;
    std::string field = "text";  // Parquet's column
    std::size_t task_bytes = std::size_t{1} << 20;
    // A JSONL line, a document of Parquet, and a piece of text between two places where it may be cut, may have at most this many
    // bytes (else Error{data}).
    std::size_t max_piece = std::size_t{1} << 30;
    InputPosition from = {};                  // an earlier Task::end of the same inputs
    const std::atomic<bool>* stop = nullptr;  // asks standard input to end, with Error{interrupted}
  };
  // The tokenizer says where a document may be cut.
  TaskReader(InputFiles files, const Tokenizer& tokenizer, const Options& options);

  // False when all input has been passed. Throws Error{data} "FILE:LINE: reason", also of rows, or "FILE: reason".
  bool next(Task& task);

 private:
  void go_to(const InputPosition& position);
  bool open_next(Task& task);
  void open();
  void open_bytes();
  void pass();  // behind the open file
  void read_text(Task& task);
  void read_jsonl(Task& task);
  void read_parquet(Task& task);
  void read_tokens(Task& task);
  bool is_text();
  void skip(std::int64_t bytes);
  std::size_t read_more(std::string& to, std::size_t bytes);
  std::int64_t consumed() const;
  void end_piece(Task& task, std::size_t bytes, bool last);

  InputFiles files_;
  const Tokenizer& tokenizer_;
  const Options options_;
  std::optional<InputFiles::File> file_;
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<ParquetFile> parquet_;  // instead, where the file is one
  InputPosition position_;                // of what is in tasks
  bool at_end_ = false;                   // of the current file's bytes
  TokenFile tokens_;                      // of the current file
  std::string rest_;                      // read, but not yet in a task
  TextChecker stream_checker_;            // of standard input, which cannot be read twice
};

}  // namespace octet::data
