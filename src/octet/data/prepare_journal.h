// The progress of `octet data prepare`, stored in PREFIX.json.part. A run writes it every few seconds; when the same command is
// given again, the next run reads it and continues.
#pragma once

#include <optional>
#include <string>

#include "octet/data/corpus_writer.h"
#include "octet/data/prepare.h"
#include "octet/data/task_reader.h"

namespace octet::data {

struct PrepareJournal {
  std::string job;         // job_of() the run; another run may continue only if its job is the same
  InputPosition position;  // all input before this position is in the part files
  WriterState writer;
  std::int64_t files = 0, skipped_files = 0, empty_documents = 0, input_bytes = 0;  // as in PrepareSummary
  std::int64_t bytes_done = 0;                                                      // as in PrepareProgress
  std::int64_t cut_tokens = 0, no_answer = 0, answer_cut = 0, dropped_fields = 0;   // as in ChatInfo
};

// Returns CorpusInfo::command: the XXH3 of the options that affect the corpus, the tokenizer's name, the end-of-document token
// that is written and the inputs as they were given. For standard input, whose name does not identify its text, the checksums
// of the written corpus replace the name.
std::string command_of(const PrepareOptions& options, const Tokenizer& writes, const WriterState& written);
// Returns the XXH3 of the options that affect the corpus, the tokenizer, its end-of-document token, and the name, size and
// modification time of every input file. Returns "" if an input is standard input, which cannot be read again.
std::string job_of(const PrepareOptions& options, const Tokenizer& tokenizer, InputFiles files);

void write_journal(const CorpusParts& parts, const PrepareJournal& journal);
// Returns nothing if there is no journal, or if it belongs to another job or is damaged. Throws SystemError if it cannot be read.
std::optional<PrepareJournal> read_journal(const CorpusParts& parts, const std::string& job);

}  // namespace octet::data
