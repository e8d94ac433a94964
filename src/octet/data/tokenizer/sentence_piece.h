// tokenizer.model of SentencePiece, of the BPE type with byte fallback, as Llama 2 and Mistral have it: no normalization but a
// space before the text and "▁" for spaces. Pieces are joined by score. The names of control pieces ("<s>") in a text are text.
// The prefix is the bos piece, the end-of-document token the eos piece, where there are such.
// Source: github.com/google/sentencepiece, src/sentencepiece_model.proto and src/bpe_model.cc.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// `file` names it in messages. Throws Error{config} that names the part that is not supported, Error{data} for what is broken.
BpeDefinition read_sentence_piece(std::string_view bytes, const std::string& file);

}  // namespace octet::data
