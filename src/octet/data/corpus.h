// A tokenised corpus in Megatron's indexed format: PREFIX.bin holds the tokens, PREFIX.idx the lengths and the document index.
// Octet also writes PREFIX.json with the tokenizer and checksums. Corpora of Megatron-LM and NeMo have no PREFIX.json; Octet
// opens them too.
//
// The tokens of all documents form one stream, numbered from 0. A document is a range of this stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "octet/base/file.h"
#include "octet/data/corpus_index.h"

namespace octet::data {

// The contents of PREFIX.json.
struct CorpusInfo {
  std::string tokenizer;       // the `spec` given to make_tokenizer(); "" if the tokenizer is unknown
  std::string tokenizer_hash;  // Tokenizer::hash(); "" if the tokenizer is unknown
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> end_of_document;
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  TokenType type = TokenType::u16;
  std::string bin_xxh3;  // XXH3-64 of PREFIX.bin, 16 hexadecimal digits
  std::string idx_xxh3;  // XXH3-64 of PREFIX.idx, 16 hexadecimal digits
};

std::string to_json(const CorpusInfo& info);
// Parses the text of a PREFIX.json. Throws Error{data} "NAME: reason".
CorpusInfo parse_corpus_info(std::string_view json, const std::string& name);

// The files of a corpus: PREFIX.bin, PREFIX.idx, PREFIX.json and PREFIX.checked. `prefix` may also be the name of one of the first
// three files.
struct CorpusPaths {
  explicit CorpusPaths(const std::filesystem::path& prefix);
  std::filesystem::path prefix, bin, idx, json, checked;
};

// Throws Error{data} if the files of a corpus are missing or cannot be opened, as Corpus() would, but reads nothing. For large
// corpora that is much quicker.
void demand_corpus(const std::filesystem::path& prefix);

// Read-only. The index is mapped; tokens are read from the file, so that a .bin that is cut short meanwhile is an error and not
// zeros. Every function may be called from many threads at once.
class Corpus {
 public:
  // Checks the whole index against the size of the .bin, and the counts and the token type of PREFIX.json against the index. Does
  // not read the tokens. Throws Error{data} "FILE: reason".
  explicit Corpus(const std::filesystem::path& prefix);

  const CorpusPaths& paths() const { return paths_; }
  const std::optional<CorpusInfo>& info() const { return info_; }
  TokenType type() const { return index_.type(); }
  std::int64_t tokens() const { return index_.tokens(); }
  std::int64_t documents() const { return index_.documents(); }
  std::int64_t sequences() const { return index_.sequences(); }
  std::int64_t bin_bytes() const { return static_cast<std::int64_t>(bin_.size()); }

  // Number of the first token of document d, for d in [0, documents()]. document_start(documents()) is tokens().
  std::int64_t document_start(std::int64_t d) const { return index_.document_start(d); }
  // The document that holds token t, for t in [0, tokens()).
  std::int64_t document_at(std::int64_t t) const { return index_.document_at(t); }

  // Tokens [first, first + out.size()). Throws Error{data} with token, position and file for a token outside
  // [0, vocab_size), and where the .bin has become shorter.
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab_size) const;

  // Reads both files whole and compares their checksums with PREFIX.json. Returns false if there is no PREFIX.json. Throws
  // Error{data} if a checksum differs.
  bool verify() const;
  // Calls verify() unless PREFIX.checked records that files with these sizes, modification times and checksums passed before.
  // Writes PREFIX.checked afterwards if the folder is writable.
  bool verify_once() const;

 private:
  CorpusPaths paths_;
  MappedFile idx_;
  FileReader bin_;
  CorpusIndex index_;
  std::optional<CorpusInfo> info_;
};

}  // namespace octet::data
