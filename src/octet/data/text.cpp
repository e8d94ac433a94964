#include "octet/data/text.h"

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

}  // namespace octet::data
