// Reads a tiktoken file of ranks: each line holds a token's bytes in base64, a space and the token's rank, which is its id. Llama 3's
// tokenizer.model is such a file. The file names neither the split pattern nor the special tokens, so Octet uses those of Llama 3. The
// ids of the special tokens follow the last rank. The prefix is <|begin_of_text|> and the end-of-document token is <|end_of_text|>. The
// name of a special token in a text is ordinary text, as in Meta's code. Source: github.com/meta-llama/llama3, llama/tokenizer.py.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// Whether the first line looks like a line of such a file.
bool looks_like_tiktoken(std::string_view bytes);

// `file` is used in messages. Throws Error{data} "FILE:LINE: reason" if the file is malformed, and Error{config} if it has more ranks
// than Llama 3.
BpeDefinition read_tiktoken(std::string_view bytes, const std::string& file);

}  // namespace octet::data
