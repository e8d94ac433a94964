// `octet data prepare`: makes a corpus from text, JSONL, Parquet or token files. A text file, a line of JSONL and a row of
// Parquet is one document each. With `chat`, a line or a row is a conversation, and the corpus has a loss mask.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/data/chat/template.h"
#include "octet/data/corpus.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/input_files.h"
#include "octet/data/output_watch.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

struct PrepareProgress {
  std::int64_t bytes_done = 0, bytes_total = 0;  // bytes of the input files on disk
  bool endless = false;                          // the total is unknown because standard input is an input
  std::int64_t documents = 0, tokens = 0;
  std::int64_t output_bytes = 0;  // size of .bin and .idx together if the corpus ended here
  std::int64_t bytes_before = 0;  // the part of bytes_done that the interrupted run did, which this run continues
  double elapsed_s = 0;
  bool last = false;  // the final call
};

// Writes a line of progress to stderr. On a terminal, it overwrites the line every second; elsewhere, it logs a line every ten
// seconds.
class ConsoleProgress {
 public:
  ConsoleProgress() = default;
  ~ConsoleProgress();  // takes the line away if the preparation failed
  ConsoleProgress(const ConsoleProgress&) = delete;
  ConsoleProgress& operator=(const ConsoleProgress&) = delete;
  void operator()(const PrepareProgress& progress);

 private:
  double next_s_ = 0;
  bool drawn_ = false;
};

struct PrepareOptions {
  // Files, shell patterns (* ? [...]), folders, and "-" for standard input, which may be given once. A folder is read recursively
  // in byte order of names, without hidden entries, folders named `build` or `out`, links to folders, the files of the output and
  // those of other corpora. A warning counts the links to folders. A link that leads nowhere is an error. Files named .gz and
  // .zst are unpacked. `format` decides how a file is read, by default from its name (input_files.h). A text file must be valid
  // UTF-8 without NUL bytes; other files are skipped and counted. Invalid text on standard input is an error.
  std::vector<std::filesystem::path> inputs;
  InputFormat format = InputFormat::automatic;
  std::filesystem::path output;  // prefix of the corpus
  // Field of a JSONL line, or column of a Parquet file. With `chat`: the field with the list of messages, or "" for the fields of
  // read_conversation(); a column then holds the JSON text of a conversation.
  std::string field = "text";
  std::optional<ChatFormat> chat = {};
  std::int64_t max_tokens = 0;  // with `chat`: the tokens of a conversation beyond this number are cut off; 0: none
  Duplicates duplicates = Duplicates::count;
  std::int64_t max_output_bytes = 0;                          // the corpus is never larger; 0: no limit
  int workers = 0;                                            // 0: one for each core; the output does not depend on it
  std::function<void(const PrepareProgress&)> progress = {};  // called on the thread of prepare() at most once a second and at the end
  const std::atomic<bool>* stop = nullptr;  // when true, prepare() throws Error{preempted} if it can be continued, and
                                            // Error{interrupted} if it reads standard input
  double journal_interval_s = 10;           // seconds of work that a killed run loses at most
  std::function<OutputWatch::Space()> space = {};  // of the disk that the corpus is on; default: asks the file system
};

struct PrepareSummary {
  CorpusInfo corpus;
  std::int64_t files = 0;            // files read
  std::int64_t skipped_files = 0;    // files that are not text
  std::int64_t empty_documents = 0;  // documents without tokens, which are not written
  std::int64_t duplicates = 0;       // documents with the tokens of an earlier document; not written if Duplicates::drop
  Duplicates duplicates_were = Duplicates::count;  // PrepareOptions::duplicates
  std::int64_t input_bytes = 0;                    // bytes on disk of the files read
  double elapsed_s = 0;
};

inline constexpr const char* kChatColumn = "messages";  // of a Parquet file, if `field` is ""

// Writes the corpus. Memory holds a bounded number of tasks (task_reader.h) and the checksums of the documents (document_set.h).
//
// A killed or interrupted run leaves part files and a journal, and so does a run that ends because a system call failed. With the
// same options and unchanged inputs, the next run continues from them and writes the same bytes as an uninterrupted run. With other
// options or inputs, or with standard input, it starts over.
//
// Throws Error{data} if an input is missing, malformed (with FILE:LINE for JSONL and rows of Parquet) or damaged, or if there are no
// documents; Error{does_not_fit} if the corpus would be larger than max_output_bytes; Error{internal} before the disk is full. These two
// leave what an interrupted run leaves, if there is a whole document. Throws Error{config} if another process prepares this corpus. A failed
// run does not change an earlier corpus. If `format` is a token format, `tokenizer` is the tokenizer that made the tokens: prepare() records it and checks
// that every token is in its vocabulary.
PrepareSummary prepare(const PrepareOptions& options, const Tokenizer& tokenizer);
// Writes a corpus from token files whose tokenizer is unknown.
PrepareSummary prepare_tokens(const PrepareOptions& options);

// A few lines for the console.
std::string to_text(const PrepareSummary& summary);

}  // namespace octet::data
