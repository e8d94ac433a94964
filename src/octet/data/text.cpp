#include "octet/data/text.h"

#include <array>
#include <cstdio>
#include <cstring>

namespace octet::data {

bool TextChecker::feed(std::string_view piece) {
  if (!good_) return false;
  const auto* at = reinterpret_cast<const unsigned char*>(piece.data());
  const unsigned char* const begin = at;
  const unsigned char* const end = at + piece.size();
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  while (at < end) {
    if (missing_ == 0) {
      // Skips eight bytes at a time while all are ASCII and none is NUL.
      std::uint64_t word;
      while (end - at >= 8) {
        std::memcpy(&word, at, 8);
        if (((word | (word - kOnes)) & kHigh) != 0) break;
        at += 8;
      }
      if (at == end) break;
      const unsigned char c = *at;
      low_ = 0x80;
      high_ = 0xBF;
      if (c > 0 && c < 0x80) {
        missing_ = 0;
      } else if (c >= 0xC2 && c <= 0xDF) {
        missing_ = 1;
      } else if (c >= 0xE0 && c <= 0xEF) {
        missing_ = 2;
        if (c == 0xE0) low_ = 0xA0;
        if (c == 0xED) high_ = 0x9F;
      } else if (c >= 0xF0 && c <= 0xF4) {
        missing_ = 3;
        if (c == 0xF0) low_ = 0x90;
        if (c == 0xF4) high_ = 0x8F;
      } else {
        good_ = false;
        break;
      }
    } else {
      if (*at < low_ || *at > high_) {
        good_ = false;
        break;
      }
      low_ = 0x80;
      high_ = 0xBF;
      --missing_;
    }
    ++at;
  }
  good_bytes_ += at - begin;
  return good_;
}

std::string printable(std::string_view text) {
  std::string out;
  const auto escape = [&](unsigned char c) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      std::array<char, 5> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", unsigned{c});
      out += hex.data();
    }
  };
  for (std::size_t i = 0; i < text.size();) {
    // The length of the valid character that begins here, or 0.
    std::size_t length = 0;
    TextChecker checker;
    for (std::size_t n = 1; n <= 4 && i + n <= text.size() && length == 0; ++n) {
      if (!checker.feed(text.substr(i + n - 1, 1))) break;
      if (checker.finish()) length = n;
    }
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too.
    const bool control =
        (length == 1 && (c < 0x20 || c == 0x7F)) || (length == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0);
    if (length == 0 || control) {
      for (std::size_t n = 0; n < (length == 0 ? 1 : length); ++n) escape(static_cast<unsigned char>(text[i + n]));
    } else {
      out.append(text.substr(i, length));
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace octet::data
