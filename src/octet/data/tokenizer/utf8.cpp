#include "octet/data/tokenizer/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace octet::data {

Utf8Char utf8_char(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true};
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false};
  }
  const std::size_t there = std::min(length, text.size() - at);
  for (std::size_t i = 1; i < there; ++i) {
    if (byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {there, there == length};
}

std::size_t character_before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

std::size_t valid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + 8 <= text.size() && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const Utf8Char next = utf8_char(text, at);
    if (!next.valid) break;
    at += next.bytes;
  }
  return at;
}

void append_replacing_invalid(std::string_view text, std::string& to) {
  while (!text.empty()) {
    const std::size_t good = valid_utf8(text);
    to += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) return;
    to += "\xEF\xBF\xBD";
    text.remove_prefix(utf8_char(text, 0).bytes);
  }
}

}  // namespace octet::data
