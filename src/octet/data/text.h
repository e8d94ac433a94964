// What counts as text, and how text of unknown origin is shown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet::data {

// Checks a text that comes in pieces: valid UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF), no NUL.
class TextChecker {
 public:
  // False from the first wrong byte on.
  bool feed(std::string_view piece);
  // False also when the text stops inside a character.
  bool finish() const { return good_ && missing_ == 0; }
  // Bytes before the first wrong one.
  std::int64_t good_bytes() const { return good_bytes_; }

 private:
  bool good_ = true;
  int missing_ = 0;                         // continuation bytes still to come
  unsigned char low_ = 0x80, high_ = 0xBF;  // what the next of them may be
  std::int64_t good_bytes_ = 0;
};

// One line that is safe on a terminal: control characters as \n, \t or \xNN, and so are bytes that are not UTF-8.
std::string printable(std::string_view text);

}  // namespace octet::data
