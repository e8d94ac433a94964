// Ranks as tiktoken writes them, one token a line: its bytes in base64, a space, its rank, which is its id. Llama 3's
// tokenizer.model is such a file. It names neither split pattern nor special tokens: they are those of Llama 3, the first special
// token behind the last rank, <|begin_of_text|> before a text and <|end_of_text|> behind it. As in Meta's code, the names of
// special tokens in a text are text. Source: github.com/meta-llama/llama3, llama/tokenizer.py.
#pragma once

#include <string>
#include <string_view>

#include "octet/data/tokenizer/bpe_tokenizer.h"

namespace octet::data {

// Whether the first line could be one of these.
bool looks_like_tiktoken(std::string_view bytes);

// `file` names it in messages, with the line. Throws Error{data}.
BpeDefinition read_tiktoken(std::string_view bytes, const std::string& file);

}  // namespace octet::data
