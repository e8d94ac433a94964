// Writes a corpus in one pass. Nothing stands under a final name before finish(); PREFIX.json comes last, so that a corpus which
// has it is whole. Constant memory, but for the sums of the documents where duplicates are looked for (document_set.h).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/base/checksum.h"
#include "octet/base/file.h"
#include "octet/data/corpus.h"
#include "octet/data/corpus_parts.h"
#include "octet/data/document_set.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// Documents of the same tokens as an earlier one.
enum class Duplicates { ignore, count, drop };

// How far a writer is, by whole documents: what another one needs to go on with its parts.
struct WriterState {
  std::int64_t documents = 0, sequences = 0, tokens = 0;
  std::int64_t duplicates = 0;
  std::vector<std::int64_t> continued;  // sequences that continue the document of the one before them
  std::int64_t largest_token = 0;
  std::int64_t seen = 0;               // documents in the set
  std::string bin_xxh3, lengths_xxh3;  // of the parts up to here
};

class CorpusWriter {
 public:
  enum class Ended { document, empty, duplicate };
  struct Options {
    // A document of more tokens is written as several sequences, because lengths in the index are 32-bit.
    std::int64_t max_sequence = std::numeric_limits<std::int32_t>::max();
    Duplicates duplicates = Duplicates::ignore;
    const WriterState* resume = nullptr;  // of parts that another writer left
  };

  // A tokenizer without a name: it is not known who made the tokens, and the vocabulary is what occurs.
  CorpusWriter(CorpusParts parts, const Tokenizer& tokenizer, const Options& options);
  CorpusWriter(CorpusParts parts, const Tokenizer& tokenizer) : CorpusWriter(std::move(parts), tokenizer, Options()) {}
  ~CorpusWriter();  // without finish() or keep(): removes the parts
  CorpusWriter(const CorpusWriter&) = delete;
  CorpusWriter& operator=(const CorpusWriter&) = delete;

  // True when it goes on where Options::resume says: the parts were read again, and are what was written then. Else it begins
  // anew.
  bool resumed() const { return resumed_; }

  // More tokens of the current document, each in [0, vocab_size). The tokenizer's prefix goes before the first.
  void append(std::span<const std::int32_t> ids);
  // Ends the current document with the tokenizer's end-of-document token, if it has one. `empty`: nothing was appended to it,
  // it is no document. `duplicate`: with Duplicates::drop it is taken back, with count it is a document like others.
  Ended end_document();
  // Renames the files to their final names, replacing an earlier corpus.
  CorpusInfo finish();

  // The documents ended so far outlive this program, and are there for another writer to resume.
  WriterState flush();
  // The parts stay when this goes away.
  void keep() { kept_ = true; }

  const CorpusParts& parts() const { return parts_; }
  std::int64_t documents() const { return info_.documents; }
  std::int64_t duplicates() const { return duplicates_; }
  bool in_document() const { return document_tokens_ > 0; }
  std::int64_t tokens() const { return info_.tokens + document_tokens_; }  // the unended document included

 private:
  void start();
  bool resume(const WriterState& state);
  std::int64_t width() const { return token_type_bytes(info_.type); }
  void put(std::span<const std::int32_t> ids);
  void end_sequence();
  void write_index();
  bool is_duplicate();
  void take_document_back();
  void begin_document();

  CorpusParts parts_;
  Options options_;
  CorpusInfo info_;
  std::int64_t duplicates_ = 0, largest_token_ = 0;
  std::int64_t sequence_tokens_ = 0, document_tokens_ = 0, first_sequence_ = 0;
  std::vector<std::int64_t> continued_;
  std::vector<std::int32_t> prefix_;  // of every document
  std::vector<char> packed_;
  // Of the .bin and of the lengths in the .idx; of the current document; of the two at its beginning.
  RunningChecksum bin_sum_, lengths_sum_, document_sum_, bin_sum_before_, lengths_sum_before_;
  DocumentSet documents_;
  std::unique_ptr<FileWriter> bin_, idx_, seen_;
  bool resumed_ = false, finished_ = false, kept_ = false;
};

}  // namespace octet::data
