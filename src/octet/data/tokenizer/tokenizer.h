// Text to token ids and back.
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

  // What make_tokenizer() was given, and what PREFIX.json records.
  virtual std::string name() const = 0;
  // 16 hexadecimal digits, the same for two tokenizers exactly when their definitions are the same bytes.
  virtual std::string hash() const = 0;
  // Every id is in [0, vocab_size).
  virtual std::int32_t vocab_size() const = 0;
  // Follows the last token of each document of a corpus; absent where documents are known from the index alone.
  virtual std::optional<std::int32_t> end_of_document() const = 0;

  // What stands before the first token of each document, and of a prompt: a beginning-of-text token, if anything.
  virtual std::span<const std::int32_t> prefix() const { return {}; }

  // Appends the ids of `text`, without prefix and end-of-document token. Bytes that are not UTF-8 are taken for U+FFFD, but by
  // `byte`, which knows no characters.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // Appends the bytes of `ids`. Where `text` is empty they begin a text: a space that encode() put there is taken away, so that
  // decode(encode(x)) is x. Throws Error{data} for an id outside the vocabulary.
  virtual void decode(std::span<const std::int32_t> ids, std::string& text) const = 0;

  // The longest prefix of `text` known to encode alone: encode(prefix) then encode(rest + anything) equals
  // encode(text + anything). 0 when no such place is known. Lets a document larger than memory be cut into pieces.
  virtual std::size_t cut(std::string_view text) const = 0;
};

// `spec` is `byte`, a tokenizer file, or a model directory: its config.json says "tokenizer": "byte", or it holds tokenizer.json or
// tokenizer.model. A file is tokenizer.json of Hugging Face (byte-level BPE with the split pattern of Llama 3, Qwen 2 or GPT-2;
// metaspace BPE with byte fallback), tokenizer.model of SentencePiece (BPE) or ranks as tiktoken writes them (Llama 3). The
// end-of-document token is the eos token that files beside it name, see special_tokens.h.
// Throws Error{config} for a kind or a part that is not supported, Error{data} for a file that is missing or broken.
enum class DocumentEnd { token, none };  // none: end_of_document() is absent whatever the files say
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec, DocumentEnd end = DocumentEnd::token);

}  // namespace octet::data
