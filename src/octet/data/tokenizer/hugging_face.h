// Reads the tokenizer.json of Hugging Face's tokenizers. Two kinds are supported:
//   byte-level  normalizer NFC or none; pre-tokenizer ByteLevel, or Split by a known pattern and then ByteLevel
//   metaspace   normalizer Prepend "▁" and Replace " " by "▁", or pre-tokenizer Metaspace; model with byte_fallback
// Both have a BPE model (ignore_merges true or false) and may have added tokens and a template that puts tokens around the text.
// Source: the serde definitions of github.com/huggingface/tokenizers 0.23.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// `file` is used in messages. Throws Error{config} that names an unsupported part, and Error{data} if the file is malformed. If
// the template puts a token after the text, this token becomes the end-of-document token.
BpeDefinition read_hugging_face(std::string_view json, const std::string& file);

}  // namespace octet::data
