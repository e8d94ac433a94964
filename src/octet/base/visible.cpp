#include "octet/base/visible.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace octet {
namespace {

struct CodeRange {
  char32_t first, last;
};
// Sources: Unicode's properties Bidi_Control and Default_Ignorable_Code_Point, and the category Cc. visible.h says what is left
// out.
constexpr CodeRange kHidden[] = {
    {0x00, 0x1F},     {0x7F, 0x9F},       {0xAD, 0xAD},       {0x34F, 0x34F},     {0x61C, 0x61C},
    {0x115F, 0x1160}, {0x17B4, 0x17B5},   {0x180E, 0x180E},   {0x200B, 0x200B},   {0x200E, 0x200F},
    {0x2028, 0x202E}, {0x2060, 0x206F},   {0x3164, 0x3164},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},
    {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF}, {0xE01F0, 0xE0FFF},
};

bool is_hidden(char32_t code) {
  return std::any_of(std::begin(kHidden), std::end(kHidden), [&](CodeRange r) { return code >= r.first && code <= r.last; });
}

// `character` is one valid UTF-8 character.
char32_t code_of(std::string_view character) {
  constexpr unsigned kLead[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t code = static_cast<unsigned char>(character[0]) & kLead[character.size()];
  for (const char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return code;
}

// The range of the byte after `lead`, and the number of bytes that follow it. Source: RFC 3629, so no surrogates, no overlong
// forms and nothing above U+10FFFF.
struct Following {
  std::size_t count = 0;
  unsigned char low = 0x80, high = 0xBF;
};
Following following(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {.count = 1};
  if (lead >= 0xE0 && lead <= 0xEF)
    return {.count = 2,
            .low = static_cast<unsigned char>(lead == 0xE0 ? 0xA0 : 0x80),
            .high = static_cast<unsigned char>(lead == 0xED ? 0x9F : 0xBF)};
  if (lead >= 0xF0 && lead <= 0xF4)
    return {.count = 3,
            .low = static_cast<unsigned char>(lead == 0xF0 ? 0x90 : 0x80),
            .high = static_cast<unsigned char>(lead == 0xF4 ? 0x8F : 0xBF)};
  return {};
}

// The length of the longest beginning of `text` that a valid character begins with, at least 1, and whether it is the whole
// character.
struct Beginning {
  std::size_t length;
  bool whole;
};
Beginning beginning(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {1, true};
  const Following wanted = following(byte(0));
  std::size_t length = 1;
  while (length <= wanted.count && length < text.size()) {
    const bool fits = length == 1 ? byte(1) >= wanted.low && byte(1) <= wanted.high : (byte(length) & 0xC0) == 0x80;
    if (!fits) break;
    ++length;
  }
  return {length, wanted.count > 0 && length == wanted.count + 1};
}

enum class Lines { one, many };

// Appends the first character or invalid byte of `text` to `out`, and returns its length.
std::size_t put(std::string& out, std::string_view text, Lines lines) {
  const std::size_t length = utf8_length(text);
  const auto first = static_cast<unsigned char>(text[0]);
  if (first == '\n' || first == '\t') {
    out += lines == Lines::many ? std::string(1, text[0]) : first == '\n' ? "\\n" : "\\t";
    return 1;
  }
  const char32_t code = length > 0 ? code_of(text.substr(0, length)) : char32_t{0};
  if (length > 0 && !is_hidden(code)) {
    out.append(text.substr(0, length));
    return length;
  }
  char escape[16];
  const char* const format = code < 0x80 ? "\\x%02x" : code <= 0xFFFF ? "\\u%04x" : "\\U%08x";
  std::snprintf(escape, sizeof escape, format, static_cast<unsigned>(length > 0 ? code : first));
  out += escape;
  return std::max<std::size_t>(length, 1);
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const Beginning begun = text.empty() ? Beginning{0, false} : beginning(text);
  return begun.whole ? begun.length : 0;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) text.remove_prefix(put(out, text, Lines::one));
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 200;
  std::string out = "\"";
  while (!text.empty() && out.size() <= kShown) text.remove_prefix(put(out, text, Lines::one));
  return out + (text.empty() ? "\"" : "...\"");
}

std::string shell_word(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=:,@%").find(c) != std::string_view::npos || static_cast<unsigned char>(c) >= 0x80;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string VisibleText::feed(std::string_view piece) {
  const std::string joined = begun_.append(piece);
  begun_.clear();
  std::string out;
  for (std::string_view text = joined; !text.empty();) {
    const Beginning begun = beginning(text);
    const bool may_go_on =
        !begun.whole && begun.length == text.size() && following(static_cast<unsigned char>(text[0])).count > 0;
    if (may_go_on) {
      begun_ = text;
      break;
    }
    text.remove_prefix(put(out, text, Lines::many));
  }
  return out;
}

}  // namespace octet
