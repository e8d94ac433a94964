// Tokenizers convert text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

// Immutable; every function may be called from many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The `spec` given to make_tokenizer(). PREFIX.json of a corpus records it.
  virtual std::string name() const = 0;
  // 16 hexadecimal digits, computed from the bytes of the definition: equal definitions have equal hashes.
  virtual std::string hash() const = 0;
  // Every id is in [0, vocab_size).
  virtual std::int32_t vocab_size() const = 0;
  // The token written after the last token of each document of a corpus, or nothing if only the index marks the ends of documents.
  virtual std::optional<std::int32_t> end_of_document() const = 0;

  // The tokens written before the first token of each document and of a prompt: a beginning-of-text token, or none.
  virtual std::span<const std::int32_t> prefix() const { return {}; }

  // Appends the ids of `text`, without prefix() and end_of_document(). Treats invalid UTF-8 as U+FFFD; the `byte` tokenizer accepts any
  // bytes.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // Appends the same ids. Returns for each of the ascending `places` in [0, text.size()] how many of these ids begin before
  // text[place]; a token that begins before a place may end after it. `text` must be valid UTF-8.
  virtual std::vector<std::size_t> encode_counting(std::string_view text, std::span<const std::size_t> places,
                                                   std::vector<std::int32_t>& ids) const = 0;
  // Appends the bytes of `ids` to `text`. If `text` is empty, the ids are the beginning of a text: decode() then removes the space that
  // encode() put there, so that decode(encode(x)) is x. Throws Error{data} for an id outside the vocabulary.
  virtual void decode(std::span<const std::int32_t> ids, std::string& text) const = 0;

  // Returns the length of the longest known prefix of `text` that can be encoded alone: for any `more`, the ids of the prefix followed
  // by the ids of rest + more are the ids of text + more. Returns 0 if no such place is known. `data prepare` uses it to cut a document
  // that is larger than a task.
  virtual std::size_t cut(std::string_view text) const = 0;
};

// Makes the tokenizer that `spec` names. `spec` is one of:
//   byte               the byte tokenizer
//   a tokenizer file   tokenizer.json of Hugging Face (byte-level BPE with the split pattern of Llama 3, Qwen 2 or GPT-2;
//   metaspace BPE
//                      with byte fallback), tokenizer.model of SentencePiece (BPE), or tiktoken ranks (Llama 3)
//   a model directory  with a tokenizer.json or tokenizer.model, or with "tokenizer": "byte" in its config.json
// The end-of-document token is the eos token named by files next to the tokenizer file (special_tokens.h).
// Throws Error{config} for an unsupported kind or part, and Error{data} for a missing or malformed file.
enum class DocumentEnd { token, none };  // none: end_of_document() returns nothing, whatever the files say
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec, DocumentEnd end = DocumentEnd::token);

}  // namespace octet::data
