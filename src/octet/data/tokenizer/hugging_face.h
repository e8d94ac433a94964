// tokenizer.json of Hugging Face's tokenizers, of two kinds, by what its parts are:
//   byte-level  pre-tokenizer ByteLevel, or Split by a known pattern and then ByteLevel; no normalizer
//   metaspace   normalizer Prepend "▁" and Replace " " by "▁", or pre-tokenizer Metaspace; model with byte_fallback
// with a BPE model (ignore_merges or not), added tokens, and a template that puts tokens before the text.
// Source: the serde definitions of github.com/huggingface/tokenizers 0.23.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// `file` names it in messages. Throws Error{config} that names the part that is not supported, Error{data} for what is broken.
// A template that ends in one token makes it the end-of-document token.
BpeDefinition read_hugging_face(std::string_view json, const std::string& file);

}  // namespace octet::data
