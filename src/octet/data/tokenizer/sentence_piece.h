// Reads the tokenizer.model of SentencePiece: the BPE type with byte fallback, as used by Llama 2 and Mistral. The only normalization is
// a space before the text and "▁" for spaces. Pieces are joined in the order of their scores. The name of a control piece ("<s>") in a
// text is ordinary text. The bos piece becomes the prefix and the eos piece the end-of-document token, if they exist.
// Source: github.com/google/sentencepiece, src/sentencepiece_model.proto and src/bpe_model.cc.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// `file` is used in messages. Throws Error{config} that names an unsupported part, and Error{data} if the file is malformed.
BpeDefinition read_sentence_piece(std::string_view bytes, const std::string& file);

}  // namespace octet::data
