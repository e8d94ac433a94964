// A tokenised corpus in Megatron's indexed format: PREFIX.bin (the tokens), PREFIX.idx (lengths and documents) and, when
// Octet wrote it, PREFIX.json (tokenizer and sums). Corpora of Megatron-LM and NeMo have no PREFIX.json and open as well.
//
// The tokens of all documents form one stream, numbered from 0; a document is a range of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "octet/base/file.h"
#include "octet/data/corpus_index.h"

namespace octet::data {

// PREFIX.json.
struct CorpusInfo {
  std::string tokenizer;       // what make_tokenizer() was given; "" when nobody knows, and the hash likewise
  std::string tokenizer_hash;  // Tokenizer::hash()
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> end_of_document;
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  TokenType type = TokenType::u16;
  std::string bin_xxh3;  // XXH3-64 of PREFIX.bin and PREFIX.idx, 16 hexadecimal digits
  std::string idx_xxh3;
};

std::string to_json(const CorpusInfo& info);
// Throws Error{data} "NAME: reason".
CorpusInfo parse_corpus_info(std::string_view json, const std::string& name);

// PREFIX.bin, PREFIX.idx, PREFIX.json, PREFIX.checked. A prefix that already ends in one of these suffixes means the same corpus.
struct CorpusPaths {
  explicit CorpusPaths(const std::filesystem::path& prefix);
  std::filesystem::path prefix, bin, idx, json, checked;
};

// Read-only. The index is mapped; tokens are read from the file, so that a .bin that is cut short meanwhile is an error and not zeros.
// Every function may be called from many threads at once.
class Corpus {
 public:
  // Checks the whole index against the .bin, and PREFIX.json against both. Throws Error{data} "FILE: reason".
  explicit Corpus(const std::filesystem::path& prefix);

  const CorpusPaths& paths() const { return paths_; }
  const std::optional<CorpusInfo>& info() const { return info_; }
  TokenType type() const { return index_.type(); }
  std::int64_t tokens() const { return index_.tokens(); }
  std::int64_t documents() const { return index_.documents(); }
  std::int64_t sequences() const { return index_.sequences(); }
  std::int64_t bin_bytes() const { return static_cast<std::int64_t>(bin_.size()); }

  // First token of document d, for d in [0, documents()]; the last one is tokens().
  std::int64_t document_start(std::int64_t d) const { return index_.document_start(d); }
  // The document that holds token t, for t in [0, tokens()).
  std::int64_t document_at(std::int64_t t) const { return index_.document_at(t); }

  // Tokens [first, first + out.size()). Throws Error{data} with token, position and file for a token outside
  // [0, vocab_size), and where the .bin has become shorter.
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab_size) const;

  // Compares both files with the sums of PREFIX.json, which reads them whole. False when there is no PREFIX.json;
  // throws Error{data} when a sum differs.
  bool verify() const;
  // The same, unless PREFIX.checked says that it was done with files of these sizes, times and sums; afterwards it says so, if
  // the folder can be written.
  bool verify_once() const;

 private:
  CorpusPaths paths_;
  MappedFile idx_;
  FileReader bin_;
  CorpusIndex index_;
  std::optional<CorpusInfo> info_;
};

}  // namespace octet::data
