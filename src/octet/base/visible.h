// Text of unknown origin, such as a file name or generated text, made safe for a terminal. Characters that a terminal obeys, or
// that a reader cannot see, are written as escapes: \x1b, \u202e. All other text, of any script, stays as it is.
//
// Escaped are: control characters (U+0000 to U+001F, U+007F to U+009F), bytes that are not UTF-8, characters that reorder text
// (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069), line separators (U+2028, U+2029), and characters without a glyph
// (soft hyphen, zero-width space, word joiner, byte order mark, fillers, interlinear marks, tags and their like). Joiners
// (U+200C, U+200D) and variation selectors stay, because Persian, Indic scripts and emoji need them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet {

// Returns the length in bytes of the valid UTF-8 character that `text` begins with, or 0 if there is none.
std::size_t utf8_length(std::string_view text);

// Returns `text` as one line. A line feed becomes \n, a tab \t.
std::string printable(std::string_view text);

// Does the same, puts the text in quotes and cuts it after about 200 bytes. For a name from a file in a message.
std::string in_quotes(std::string_view text);

// Returns text as one word of a command that a user may copy: in single quotes if a shell would read it otherwise.
std::string shell_word(std::string_view text);

// Makes text visible that arrives in pieces. Line feeds and tabs stay.
class VisibleText {
 public:
  // Returns the text to write. Keeps an incomplete character at the end for the next call.
  std::string feed(std::string_view piece);

 private:
  std::string begun_;  // the first bytes of a character, at most three
};

}  // namespace octet
