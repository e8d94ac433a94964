// Writes a corpus in one pass and constant memory. Nothing stands under a final name before finish(); PREFIX.json comes
// last, so that a corpus which has it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/checksum.h"
#include "octet/data/corpus.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

class CorpusWriter {
 public:
  // Creates missing folders and removes temporary files that a killed run left for this prefix. A document of more than
  // `max_sequence` tokens is written as several sequences, because lengths in the index are 32-bit.
  CorpusWriter(const std::filesystem::path& prefix, const Tokenizer& tokenizer,
               std::int64_t max_sequence = std::numeric_limits<std::int32_t>::max());
  ~CorpusWriter();  // without finish(): removes the temporary files
  CorpusWriter(const CorpusWriter&) = delete;
  CorpusWriter& operator=(const CorpusWriter&) = delete;

  // More tokens of the current document, each in [0, vocab_size).
  void append(std::span<const std::int32_t> ids);
  // Ends the current document with the tokenizer's end-of-document token, if it has one. False, and no document, when
  // nothing was appended to it.
  bool end_document();
  // Renames the files to their final names, replacing an earlier corpus.
  CorpusInfo finish();

  std::int64_t documents() const { return info_.documents; }
  std::int64_t tokens() const { return info_.tokens + document_tokens_; }  // the unended document included

 private:
  void end_sequence();
  void write_index();
  void remove_temporaries();

  CorpusPaths paths_;
  std::filesystem::path bin_temporary_, idx_temporary_;
  CorpusInfo info_;
  std::int64_t max_sequence_;
  std::int64_t sequence_tokens_ = 0;     // of the current sequence
  std::int64_t document_tokens_ = 0;     // of the current document
  std::vector<std::int64_t> continued_;  // sequences that continue the document of the one before them
  std::int64_t first_sequence_ = 0;      // of the current document
  std::vector<char> packed_;
  RunningChecksum bin_sum_;
  std::unique_ptr<FileWriter> bin_, idx_;
  bool finished_ = false;
};

}  // namespace octet::data
