// How far `octet data prepare` is, in PREFIX.json.part: written every few seconds, read when the same command is given again.
#pragma once

#include <optional>
#include <string>

#include "octet/data/corpus_writer.h"
#include "octet/data/prepare.h"
#include "octet/data/task_reader.h"

namespace octet::data {

struct PrepareJournal {
  std::string job;         // what must be the same for the rest to mean anything
  InputPosition position;  // all before it is in the parts
  WriterState writer;
  std::int64_t files = 0, skipped_files = 0, empty_documents = 0, input_bytes = 0;  // of PrepareSummary
  std::int64_t bytes_done = 0;                                                      // of PrepareProgress
};

// XXH3 of the options, the tokenizer, its end-of-document token and the name, size and time of every input file. "" for standard
// input, which cannot be read again.
std::string job_of(const PrepareOptions& options, const Tokenizer& tokenizer, InputFiles files);

void write_journal(const CorpusParts& parts, const PrepareJournal& journal);
// Nothing when there is none, it is of another job or is not whole.
std::optional<PrepareJournal> read_journal(const CorpusParts& parts, const std::string& job);

}  // namespace octet::data
