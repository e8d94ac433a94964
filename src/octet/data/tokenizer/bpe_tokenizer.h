// Tokenizers of the Llama, Mistral, Qwen and GPT-NeoX families. Encoding finds the added tokens, normalizes the text between them
// if the definition says so, divides it into words, and applies byte-pair encoding to each word. The readers in this folder make
// a BpeDefinition from a tokenizer's files.
//
// A metaspace vocabulary writes a space as "▁" (U+2581). The definition holds a plain space instead, and encode() treats "▁" in a
// text as a space, because the vocabulary cannot tell the two apart.
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

// How a metaspace tokenizer treats a piece of text between added tokens.
struct Metaspace {
  enum class Space {  // when encode() puts a space before the piece
    never,
    first,    // if the piece is the beginning of the text and does not begin with a space
    always,   // if the piece does not begin with a space
    doubled,  // before every piece, even if it begins with a space
  } space = Space::doubled;
  enum class Words {
    whole,   // the piece is one word
    spaced,  // a word ends before every space
  } words = Words::whole;
};

struct BpeDefinition {
  std::string file;                 // the file of the definition, for messages
  std::vector<std::string> pieces;  // pieces[id]: the bytes that the token stands for
  BpeModel model;
  std::string pattern;  // the split pattern of a byte-level tokenizer; "" means metaspace
  enum class Normalizer { none, nfc } normalizer = Normalizer::none;  // byte-level only
  Metaspace metaspace;
  std::vector<AddedTokens::Token> added;  // found in the original text
  std::vector<AddedTokens::Token>
      normalized;  // found in a piece after it was normalized, or a space was put before it (metaspace)
  std::vector<std::int32_t> prefix;
  std::optional<std::int32_t> end_of_document;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // `name` and `hash` are the results of the functions with these names. Throws Error{config} for an unsupported split pattern.
  BpeTokenizer(BpeDefinition definition, std::string name, std::string hash);
  ~BpeTokenizer() override;

  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(pieces_.size()); }
  std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }
  std::span<const std::int32_t> prefix() const override { return prefix_; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::vector<std::size_t> encode_counting(std::string_view text, std::span<const std::size_t> places,
                                           std::vector<std::int32_t>& ids) const override;
  void decode(std::span<const std::int32_t> ids, std::string& text) const override;
  std::size_t cut(std::string_view text) const override;

 private:
  struct Worker;  // the buffers and the word cache of one call of encode()
  class Borrowed;

  void encode_piece(std::string_view piece, bool first, Worker& worker, std::vector<std::int32_t>& ids) const;
  std::string_view transformed(std::string_view piece, Worker& worker) const;
  std::size_t count_before(std::string_view piece, std::size_t place, Worker& worker) const;
  bool marks_spaces() const { return !pattern_ && metaspace_.space == Metaspace::Space::doubled; }
  void encode_spaced(std::string_view text, bool space, Worker& worker, std::vector<std::int32_t>& ids) const;
  void encode_split(std::string_view text, Worker& worker, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, Worker& worker, std::vector<std::int32_t>& ids) const;
  bool may_cut(std::string_view text, std::size_t at, Worker& worker) const;
  bool puts_space(std::string_view piece, bool first) const;

  std::string name_, hash_;
  std::vector<std::string> pieces_;
  std::vector<bool> verbatim_;  // verbatim_[id]: the token is an added token
  std::vector<bool>
      space_after_;  // space_after_[id]: the token is an added token, and encode() puts a space before the piece after it
  std::vector<std::int32_t> prefix_;
  std::optional<std::int32_t> end_of_document_;
  Metaspace metaspace_;
  Bpe bpe_;
  AddedTokens added_, normalized_;
  std::optional<SplitPattern> pattern_;
  BpeDefinition::Normalizer normalizer_;
  bool can_cut_ = true;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace octet::data
