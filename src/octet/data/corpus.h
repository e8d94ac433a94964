// A tokenised corpus in Megatron's indexed format: PREFIX.bin holds the tokens, PREFIX.idx the lengths and the document index.
// Octet also writes PREFIX.json with the tokenizer and checksums. Corpora of Megatron-LM and NeMo have no PREFIX.json; Octet
// opens them too.
//
// A corpus may have a loss mask, PREFIX.loss.bin and PREFIX.loss.idx: an indexed dataset of u8 with the same sequences and
// documents. It holds 1 for each token that is predicted with loss, and 0 for the others. Without it, every token is predicted
// with loss.
//
// The tokens of all documents form one stream, numbered from 0. A document is a range of this stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octet/base/file.h"
#include "octet/base/retry.h"
#include "octet/data/corpus_index.h"

namespace octet::data {

// The description of a loss mask in PREFIX.json.
struct LossMaskInfo {
  std::int64_t trained_tokens = 0;
  std::string bin_xxh3, idx_xxh3;  // of PREFIX.loss.bin and PREFIX.loss.idx
};

// The description of a corpus of conversations in PREFIX.json.
struct ChatInfo {
  std::string form, train_on;   // names of the template, and of what is trained on
  std::int64_t cut_tokens = 0;  // tokens beyond --max-tokens
  std::int64_t no_answer = 0;   // conversations that were left out because no answer is trained on
  std::int64_t answer_cut = 0;  // conversations that were left out because --max-tokens cuts off every answer
  std::int64_t duplicates = 0;  // conversations that were left out because an earlier one is the same
  std::int64_t dropped_fields = 0;  // fields of messages, such as a name or images, that are not read
};

// Returns the conversations and tokens that were cut off or left out, one line each, for the console.
std::string to_text(const ChatInfo& chat);

// The contents of PREFIX.json.
struct CorpusInfo {
  std::string tokenizer;       // the `spec` given to make_tokenizer(); "" if the tokenizer is unknown
  std::string tokenizer_hash;  // Tokenizer::hash(); "" if the tokenizer is unknown
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> end_of_document;
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  std::optional<std::int64_t> largest_token = {};  // unknown in corpora of earlier versions
  TokenType type = TokenType::u16;
  std::string bin_xxh3;  // XXH3-64 of PREFIX.bin, 16 hexadecimal digits
  std::string idx_xxh3;  // XXH3-64 of PREFIX.idx, 16 hexadecimal digits
  std::string command = {};  // XXH3-64 of what tells the command that made it from others; "" if unknown
  std::optional<LossMaskInfo> loss = {};
  std::optional<ChatInfo> chat = {};
};

// The beginning of every PREFIX.json.
inline constexpr std::string_view kCorpusInfoBegin = "{\n  \"format\": \"octet corpus\",\n";
std::string to_json(const CorpusInfo& info);
// Parses the text of a PREFIX.json. Throws Error{data} "NAME: reason".
CorpusInfo parse_corpus_info(std::string_view json, const std::string& name);

// Says what to do about a corpus with tokens that a model does not have. A vocabulary of `wanted` tokens would have them.
std::string vocabulary_advice(std::int64_t wanted);

// The files of a corpus. `prefix` may also be the name of PREFIX.bin, PREFIX.idx or PREFIX.json.
struct CorpusPaths {
  explicit CorpusPaths(const std::filesystem::path& prefix);
  std::filesystem::path prefix, bin, idx, json, checked, loss_bin, loss_idx;
};

// Throws Error{data} if the files of a corpus are missing or cannot be opened, as Corpus() would, but reads nothing. For large
// corpora that is much quicker.
void demand_corpus(const std::filesystem::path& prefix);

// A read-only corpus. The index is mapped. Tokens are read from the file, so that a .bin that is cut short meanwhile causes an
// error instead of zeros. Errors that may pass are retried for `retry_s` seconds, except those of the mapped index, which end
// the process. Every function may be called from many threads at once.
class Corpus {
 public:
  // Checks the whole index against the size of the .bin, and the counts and the token type of PREFIX.json against the index. Does
  // not read the tokens. Throws Error{data} "FILE: reason". `ignored` leaves a loss mask unread: the corpus then has none.
  enum class Mask { read, ignored };
  explicit Corpus(const std::filesystem::path& prefix, Mask mask = Mask::read, double retry_s = kRetryS);

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

  bool has_loss_mask() const { return loss_.has_value(); }
  // Reads the loss mask of tokens [first, first + out.size()). Throws Error{data} for other values than 0 and 1.
  void read_loss_mask(std::int64_t first, std::span<std::uint8_t> out) const;

  // Reads all files whole and compares their checksums with PREFIX.json. Returns false if there is no PREFIX.json. Throws
  // Error{data} if a checksum differs.
  bool verify() const;
  // Calls verify() unless PREFIX.checked records that files with these sizes, modification times and checksums passed before.
  // Writes PREFIX.checked afterwards if the folder is writable.
  bool verify_once() const;

 private:
  struct LossMask {
    MappedFile idx;
    FileReader bin;
  };
  std::optional<LossMask> open_loss_mask(Mask mask) const;

  CorpusPaths paths_;
  double retry_s_;
  MappedFile idx_;
  FileReader bin_;
  CorpusIndex index_;
  std::optional<CorpusInfo> info_;
  std::optional<LossMask> loss_;
};

}  // namespace octet::data
