// Writes a corpus in one pass, to part files. finish() gives them their final names and writes PREFIX.json last, so a corpus with a
// PREFIX.json is complete. Memory does not grow with the corpus, except for the checksums of the documents if duplicates are looked
// for (document_set.h), and eight bytes for each sequence that continues a document.
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

// What to do with a document that has the same tokens, and the same loss mask, as an earlier document.
enum class Duplicates { ignore, count, drop };

// The progress of a writer up to the last whole document. Another writer needs it to continue the part files.
struct WriterState {
  std::int64_t documents = 0, sequences = 0, tokens = 0;
  std::int64_t duplicates = 0;
  std::vector<std::int64_t> continued;  // sequences that continue the document of the sequence before
  std::int64_t largest_token = 0;
  std::int64_t seen = 0;               // documents in the DocumentSet
  std::string bin_xxh3, lengths_xxh3;  // checksums of the .bin part and of the lengths in the .idx part, up to here
  std::string loss_xxh3;               // checksum of the .loss.bin part, up to here; "" without a loss mask
  std::int64_t trained_tokens = 0;
};

class CorpusWriter {
 public:
  enum class Ended { document, empty, duplicate };
  enum class LossMask { none, written };
  struct Options {
    // A longer document is written as several sequences, because the index stores lengths in 32 bits. In tokens.
    std::int64_t max_sequence = std::numeric_limits<std::int32_t>::max();
    Duplicates duplicates = Duplicates::ignore;
    LossMask loss_mask = LossMask::none;
    const WriterState* resume = nullptr;  // state of the part files that another writer left; nullptr: start anew
  };

  // An empty Tokenizer::name() means that the tokenizer is unknown. finish() then records the largest token + 1 as the vocabulary
  // size.
  CorpusWriter(CorpusParts parts, const Tokenizer& tokenizer, const Options& options);
  CorpusWriter(CorpusParts parts, const Tokenizer& tokenizer) : CorpusWriter(std::move(parts), tokenizer, Options()) {}
  ~CorpusWriter();  // deletes the part files unless finish() or keep() was called
  CorpusWriter(const CorpusWriter&) = delete;
  CorpusWriter& operator=(const CorpusWriter&) = delete;

  // True if this writer continues the part files: their checksums match Options::resume. Otherwise it starts anew.
  bool resumed() const { return resumed_; }

  // Appends tokens to the current document; each must be in [0, vocab_size). Writes the tokenizer's prefix before the first token
  // of a document. With a loss mask, `trained` has 1 or 0 for each id; the tokenizer must then put nothing before or after a
  // document.
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> trained = {});
  // Ends the current document and writes the tokenizer's end-of-document token, if it has one. Returns `empty` if no token was
  // appended; no document is written then. Returns `duplicate` if an earlier document has the same tokens and the same mask:
  // Duplicates::drop removes the document from the files, Duplicates::count keeps it.
  Ended end_document();
  // Gives the files their final names. Moves a corpus of another command aside. Replaces one of the same command, or any corpus
  // if `command` is "". `command` (CorpusInfo::command) and `chat` go into PREFIX.json.
  CorpusInfo finish(const std::string& command = {}, const std::optional<ChatInfo>& chat = {});

  // Flushes the part files and returns the state after the last whole document, from which another writer can resume.
  WriterState flush();
  // Makes the destructor leave the part files where they are.
  void keep() { kept_ = true; }

  const CorpusParts& parts() const { return parts_; }
  std::int64_t documents() const { return info_.documents; }
  std::int64_t duplicates() const { return duplicates_; }
  // Tokens that are still to be appended, and how many documents begin and end with them.
  struct More {
    std::int64_t tokens = 0, begun = 0, ended = 0;
  };
  // Size of .bin, .idx and the loss mask together if the corpus ended after these tokens and none of their documents were
  // dropped.
  std::int64_t output_bytes(const More& more = {0, 0, 0}) const;
  // An upper limit of the bytes that finish() still has to write.
  std::int64_t unwritten_bytes() const;
  bool in_document() const { return document_tokens_ > 0; }
  std::int64_t tokens() const { return info_.tokens + document_tokens_; }  // includes the current document

 private:
  void start();
  bool resume(const WriterState& state);
  std::int64_t width() const { return token_type_bytes(info_.type); }
  void put(std::span<const std::int32_t> ids);
  void end_sequence();
  void write_index();
  void write_loss_index();
  bool masks() const { return options_.loss_mask == LossMask::written; }
  bool is_duplicate();
  void take_document_back();
  void begin_document();

  CorpusParts parts_;
  Options options_;
  CorpusInfo info_;
  std::int64_t duplicates_ = 0, largest_token_ = 0;
  std::int64_t sequence_tokens_ = 0, document_tokens_ = 0, first_sequence_ = 0;
  std::vector<std::int64_t> continued_;
  std::vector<std::int32_t> prefix_;  // tokens before every document
  std::vector<char> packed_;
  // Checksums of the .bin, of the lengths in the .idx and of the current document. The last two hold the values that bin_sum_ and
  // lengths_sum_ had at the beginning of the current document.
  RunningChecksum bin_sum_, lengths_sum_, document_sum_, bin_sum_before_, lengths_sum_before_;
  RunningChecksum loss_sum_, loss_sum_before_;                   // of the .loss.bin, likewise
  std::int64_t trained_tokens_ = 0, trained_tokens_before_ = 0;  // likewise
  DocumentSet documents_;
  std::unique_ptr<FileWriter> bin_, idx_, seen_, loss_;
  bool resumed_ = false, finished_ = false, kept_ = false;
};

}  // namespace octet::data
