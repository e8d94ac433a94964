// Divides the inputs of `octet data prepare` into tasks. Memory grows only with the longest line, or the longest text between two
// places where it may be cut.
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

// A range of `Task::bytes`: a piece of a document (text), one line (JSONL), one document (Parquet) or several whole documents (tokens).
struct Segment {
  std::size_t begin = 0, end = 0;
  bool ends_document = true;
  std::int64_t line = 0;  // JSONL: line, from 1; Parquet: row, from 1; tokens: number of the first token in its file, from 0
};

// A position in the inputs: the tasks so far hold everything before it.
struct InputPosition {
  std::int64_t files = 0;       // files that the tasks have passed
  std::int64_t bytes = 0;       // bytes of the open file, unpacked and counted from the end of its header; rows if it is Parquet
  std::int64_t lines = 0;       // lines of the open file, if it is JSONL
  std::int64_t open_bytes = 0;  // the open file's share of Task::bytes_passed so far
  // 56-bit checksums of names and sizes. files_sum covers the passed files. open_sum also covers the open file; it is 0 if bytes is 0.
  std::int64_t files_sum = 0, open_sum = 0;
};

// Whether `files` begins with the files that led to `position`. A folder may have changed since the position was taken.
bool leads_to(InputFiles files, const InputPosition& position);

struct Task {
  InputFormat format = InputFormat::text;
  std::string bytes;
  std::vector<Segment> segments;
  std::string file;        // the file of all segments; unused for text, where a task may hold several files
  TokenFile tokens;        // how to read `file`, if it holds tokens
  std::int64_t files = 0;  // files that end in this task
  std::int64_t skipped_files = 0;
  std::int64_t bytes_passed = 0;   // bytes of the input on disk, including skipped files
  std::int64_t skipped_bytes = 0;  // bytes of skipped files
  InputPosition end;               // position after this task
};

// Reads the inputs and fills one task after another.
class TaskReader {
 public:
  struct Options {
    InputFormat format = InputFormat::automatic;
    std::string field = "text";                     // column of a Parquet file
    ParquetFile::Values values = ParquetFile::Values::text;
    std::size_t task_bytes = std::size_t{1} << 20;  // a task is full when it holds this many bytes
    // The most bytes of a JSONL line, a Parquet value, a document of tokens, and a piece of text between two places where it may be
    // cut. Throws Error{data} for a longer one.
    std::size_t max_piece = std::size_t{1} << 30;
    InputPosition from = {};                  // where to begin: Task::end of an earlier run over the same inputs
    const std::atomic<bool>* stop = nullptr;  // when true, reading standard input throws Error{interrupted}
  };
  // Tokenizer::cut() decides where a text may be cut.
  TaskReader(InputFiles files, const Tokenizer& tokenizer, const Options& options);

  // Fills `task` and returns true, or returns false at the end of the inputs. `task` must be empty. Throws Error{data} "FILE: reason",
  // or "FILE:LINE: reason" for a line of JSONL or a row of Parquet.
  bool next(Task& task);

 private:
  void go_to(const InputPosition& position);
  bool open_next(Task& task);
  void open();
  void open_bytes();
  void pass();  // leaves the open file
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
  std::unique_ptr<ParquetFile> parquet_;  // used instead of source_ for a Parquet file
  InputPosition position_;                // the tasks so far hold everything before it
  bool at_end_ = false;                   // all bytes of the open file have been read
  TokenFile tokens_;                      // format of the open file, if it holds tokens
  std::string rest_;                      // bytes that were read but are not yet in a task
  TextChecker stream_checker_;            // checks standard input while it is read, because it cannot be read twice
};

}  // namespace octet::data
