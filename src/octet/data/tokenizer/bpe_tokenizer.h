// Tokenizers of the Llama and Mistral families: added tokens, a way to cut what is between them into words, and byte-pair
// encoding of the words. The readers beside this file make the definition from the files that exist.
//
// A space is a space here: "▁" (U+2581) of a metaspace vocabulary, and in its texts, is written as one, for both mean the same.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "octet/data/tokenizer/added_tokens.h"
#include "octet/data/tokenizer/bpe.h"
#include "octet/data/tokenizer/split_pattern.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// How a metaspace tokenizer sees a piece of text between added tokens.
struct Metaspace {
  enum class Space {  // that is put before the piece
    never,
    first,    // when the text begins with the piece and the piece not with a space
    always,   // when the piece does not begin with a space
    doubled,  // even then
  } space = Space::doubled;
  enum class Words {
    whole,   // the piece is one word
    spaced,  // a word ends before every space
  } words = Words::whole;
};

struct BpeDefinition {
  std::string file;                 // that it comes from, for messages
  std::vector<std::string> pieces;  // by id: the bytes it stands for
  BpeModel model;
  std::string pattern;  // byte-level: the split pattern; "" means metaspace
  Metaspace metaspace;
  std::vector<AddedTokens::Token> added;       // found in the text as it is
  std::vector<AddedTokens::Token> normalized;  // found in the piece with its space before it (metaspace only)
  std::vector<std::int32_t> prefix;
  std::optional<std::int32_t> end_of_document;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // `name` and `hash` are what the functions of these names say. Throws Error{config} for a pattern that is not supported.
  BpeTokenizer(BpeDefinition definition, std::string name, std::string hash);
  ~BpeTokenizer() override;

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(pieces_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }
  std::span<const std::int32_t> prefix() const override { return prefix_; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void decode(std::span<const std::int32_t> ids, std::string& text) const override;
  std::size_t cut(std::string_view text) const override;

 private:
  struct Worker;  // what one call of encode() needs: memory, and the words it knows
  class Borrowed;

  void encode_piece(std::string_view piece, bool first, Worker& worker, std::vector<std::int32_t>& ids) const;
  void encode_spaced(std::string_view text, bool space, Worker& worker, std::vector<std::int32_t>& ids) const;
  void encode_split(std::string_view text, Worker& worker, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, Worker& worker, std::vector<std::int32_t>& ids) const;
  bool may_cut(std::string_view text, std::size_t at, Worker& worker) const;
  bool puts_space(std::string_view piece, bool first) const;

  std::string name_, hash_;
  std::vector<std::string> pieces_;
  std::vector<bool> verbatim_;     // by id: an added token
  std::vector<bool> space_after_;  // by id: an added token, and what follows it had a space put before it
  std::vector<std::int32_t> prefix_;
  std::optional<std::int32_t> end_of_document_;
  Metaspace metaspace_;
  Bpe bpe_;
  AddedTokens added_, normalized_;
  std::optional<SplitPattern> pattern_;
  bool can_cut_ = true;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace octet::data
