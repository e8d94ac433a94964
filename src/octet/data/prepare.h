// `octet data prepare`: texts and JSONL, packed or not, and Parquet into a corpus. One document per text file, line or row.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/data/corpus.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/input_files.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

struct PrepareProgress {
  std::int64_t bytes_done = 0, bytes_total = 0;  // of input files as they lie
  bool endless = false;                          // standard input is among them: the total is not known
  std::int64_t documents = 0, tokens = 0;
  std::int64_t bytes_before = 0;  // of bytes_done, by the interrupted run that this one goes on with
  double elapsed_s = 0;
  bool last = false;  // the final call
};

// One line to stderr, rewritten in place on a terminal, every ten seconds elsewhere.
class ConsoleProgress {
 public:
  void operator()(const PrepareProgress& progress);

 private:
  double next_s_ = 0;
};

struct PrepareOptions {
  // Files, patterns of files (* ? [...]), folders, and "-" for standard input, once. Folders are gone through recursively in byte
  // order of names; hidden entries, folders named `build` or `out`, links to folders and the output itself are left out. Files
  // named .gz and .zst are unpacked. A file is read as `format` says, by default by its name (input_files.h). Text is a file of
  // which all is valid UTF-8 without NUL bytes; another is skipped and counted, on standard input it is an error.
  std::vector<std::filesystem::path> inputs;
  InputFormat format = InputFormat::automatic;
  std::filesystem::path output;  // prefix
  std::string field = "text";    // of a JSONL line; Parquet's column
  Duplicates duplicates = Duplicates::count;
  int workers = 0;                                            // 0: one per core; the output does not depend on it
  std::function<void(const PrepareProgress&)> progress = {};  // called from this thread at most once a second, and at the end
  const std::atomic<bool>* stop = nullptr;  // set: throws Error{preempted} where this can go on, else Error{interrupted}
  double journal_interval_s = 10;           // what a killed run loses at most
};

struct PrepareSummary {
  CorpusInfo corpus;
  std::int64_t files = 0;            // read
  std::int64_t skipped_files = 0;    // not text
  std::int64_t empty_documents = 0;  // not written
  std::int64_t duplicates = 0;       // documents of the tokens of an earlier one; with Duplicates::drop not written
  Duplicates duplicates_were = Duplicates::count;
  std::int64_t input_bytes = 0;  // of the files read, as they lie
  double elapsed_s = 0;
};

// Memory is that of a bounded number of pieces (task_reader.h) and of Duplicates (document_set.h). A run that was killed or
// interrupted left its parts and a journal: with the same options and the same inputs, unchanged, this goes on from there and
// gives the same bytes. With others it starts over, and so it does with standard input. Throws Error{data} for input that is
// missing, has no documents, is broken (FILE:LINE for JSONL and rows of Parquet) or damaged, Error{internal} when the disk is
// full, Error{config} when another process prepares this corpus; a failed run leaves an earlier corpus as it was. Where `format`
// holds tokens, the tokenizer is the one that made them: its vocabulary is checked, nothing else is done with it.
PrepareSummary prepare(const PrepareOptions& options, const Tokenizer& tokenizer);
// The same for tokens of which nobody knows who made them.
PrepareSummary prepare_tokens(const PrepareOptions& options);

// A few lines for the console.
std::string to_text(const PrepareSummary& summary);

}  // namespace octet::data
