// Checks that bytes are text.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet::data {

// Checks that a text, given in pieces, is valid UTF-8 without NUL bytes. Source: RFC 3629, so no surrogates, no overlong forms and
// nothing above U+10FFFF.
class TextChecker {
 public:
  // Checks the next piece. Returns false from the first invalid byte on.
  bool feed(std::string_view piece);
  // Returns whether the text is valid so far and does not end inside a character.
  bool finish() const { return good_ && missing_ == 0; }
  // Number of bytes before the first invalid byte.
  std::int64_t good_bytes() const { return good_bytes_; }

 private:
  bool good_ = true;
  int missing_ = 0;                         // continuation bytes that the current character still needs
  unsigned char low_ = 0x80, high_ = 0xBF;  // range of the next continuation byte
  std::int64_t good_bytes_ = 0;
};

}  // namespace octet::data
