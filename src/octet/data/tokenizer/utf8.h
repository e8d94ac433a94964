// UTF-8 as tokenizers see it: characters, and what becomes of bytes that are none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet::data {

struct Utf8Char {
  std::size_t bytes;  // 1 to 4; of a wrong one: of the longest part that could begin a character (Unicode 15, D93b)
  bool valid;         // RFC 3629: no surrogates, no overlong forms, at most U+10FFFF
};

// The character at text[at], at < text.size().
Utf8Char utf8_char(std::string_view text, std::size_t at);

// Bytes before the first wrong one.
std::size_t valid_utf8(std::string_view text);

// Appends `text` with U+FFFD in the place of each wrong part, as Rust's from_utf8_lossy and Python's errors="replace" do.
void append_replacing_invalid(std::string_view text, std::string& to);

}  // namespace octet::data
