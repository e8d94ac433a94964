#include "octet/data/text.h"

#include "data/files.h"

namespace octet::data {
namespace {

// Returns the position of the first wrong byte, or -1. Checks that it does not depend on the pieces.
std::int64_t wrong_at(const std::string& text) {
  TextChecker whole;
  whole.feed(text);
  for (std::size_t piece = 1; piece <= 3; ++piece) {
    TextChecker checker;
    for (std::size_t i = 0; i < text.size(); i += piece) checker.feed(std::string_view(text).substr(i, piece));
    EXPECT_EQ(checker.finish(), whole.finish()) << text;
    EXPECT_EQ(checker.good_bytes(), whole.good_bytes()) << text;
  }
  return whole.finish() ? -1 : whole.good_bytes();
}

TEST(TextChecker, EveryCodePointAndNoOther) {
  // Checks all values, including those that UTF-8 forbids, against its definition.
  for (std::uint32_t c = 1; c < 0x120000; ++c) {
    std::string text;
    const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3F))); };
    if (c < 0x80) {
      text.push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      text.push_back(static_cast<char>(0xC0 | (c >> 6)));
      tail(0);
    } else if (c < 0x10000) {
      text.push_back(static_cast<char>(0xE0 | (c >> 12)));
      tail(6);
      tail(0);
    } else {
      text.push_back(static_cast<char>(0xF0 | (c >> 18)));
      tail(12);
      tail(6);
      tail(0);
    }
    TextChecker checker;
    checker.feed(text);
    const bool valid = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
    ASSERT_EQ(checker.finish(), valid) << std::hex << c;
  }
}

TEST(TextChecker, FindsTheWrongByte) {
  EXPECT_EQ(wrong_at(""), -1);
  EXPECT_EQ(wrong_at("plain text of more than eight bytes\n\t"), -1);
  EXPECT_EQ(wrong_at("sch\xC3\xB6n, \xE2\x82\xAC, \xF0\x9F\x98\x80 and more"), -1);
  EXPECT_EQ(wrong_at(std::string("0123456789\0abc", 14)), 10);
  EXPECT_EQ(wrong_at(std::string("\0", 1)), 0);
  EXPECT_EQ(wrong_at("0123456789abcdef\xFF"), 16);
  EXPECT_EQ(wrong_at("latin \xE9t\xE9"), 7);  // the lead byte is found to be wrong only at the next byte
  EXPECT_EQ(wrong_at("overlong \xC0\xAF"), 9);
  EXPECT_EQ(wrong_at("overlong \xE0\x80\xAF"), 10);
  EXPECT_EQ(wrong_at("cut \xE2\x82"), 6);
  EXPECT_EQ(wrong_at("tail alone \x80"), 11);
}

}  // namespace
}  // namespace octet::data
