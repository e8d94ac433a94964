// Decodes UTF-8 as tokenizers do, including the replacement of invalid bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet::data {

struct Utf8Char {
  std::size_t bytes;  // 1 to 4; if invalid, the length of the maximal subpart (Unicode 15, section 3.9, D93b)
  bool valid;         // by RFC 3629: no surrogates, no overlong forms, at most U+10FFFF
};

// The character at text[at], at < text.size().
Utf8Char utf8_char(std::string_view text, std::size_t at);

// The place at which the character that ends before text[at] begins, at > 0.
std::size_t character_before(std::string_view text, std::size_t at);

// The number of bytes before the first invalid character.
std::size_t valid_utf8(std::string_view text);

// Appends `text` with each invalid part replaced by U+FFFD, like Rust's from_utf8_lossy and Python's errors="replace".
void append_replacing_invalid(std::string_view text, std::string& to);

}  // namespace octet::data
