#include "octet/data/tokenizer/nfc.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace octet::data {
namespace {

std::string normalized(std::string_view text) {
  std::string buffer;
  return std::string(nfc(text, buffer));
}

// The expected texts are those of Python's unicodedata.normalize("NFC", text).
TEST(Nfc, JoinsAndOrders) {
  EXPECT_EQ(normalized("e\u0301"), "\u00e9");
  EXPECT_EQ(normalized("xe\u0301 e\u0301x"), "x\u00e9 \u00e9x");
  EXPECT_EQ(normalized("e\u0301\u0327"), "\u0229\u0301");  // the cedilla goes first
  EXPECT_EQ(normalized("\u00e9\u0327"), "\u0229\u0301");   // and takes the accent's place
  EXPECT_EQ(normalized("\u1112\u1161\u11ab"), "\ud55c");   // jamo
  EXPECT_EQ(normalized("\ud558\u11ab\u11ab"), "\ud55c\u11ab");
  EXPECT_EQ(normalized("\u2126\u212b\uf900"), "\u03a9\u00c5\u8c48");  // characters with one other form
  EXPECT_EQ(normalized("\ufb1d\u0958"), "\u05d9\u05b4\u0915\u093c");  // characters that stay apart
  EXPECT_EQ(normalized("\u09c7\u09be\u09c7"), "\u09cb\u09c7");
  EXPECT_EQ(normalized("\u0301e"), "\u0301e");
}

TEST(Nfc, LeavesTextsThatAreNormalizedWhereTheyAre) {
  for (const std::string_view text : {"", "plain text", "caf\u00e9 \u65e5\u672c \ud55c\uad6d\uc5b4 \U0001f600"}) {
    std::string buffer;
    EXPECT_EQ(nfc(text, buffer).data(), text.data());
  }
}

// Python's unicodedata of Unicode 18 gives other texts here. The expected texts are those of tokenizers 0.23, which knows
// Unicode 9.
TEST(Nfc, MarksOfRecentVersionsStayInPlace) {
  for (const std::string text :
       {"a\u07fd\u0327", "a\u0345\u07fd", "a\U0001e136\u0334", "\U00011935\U00011930", "\U000105d2\u0307", "\uac00\u11a7"}) {
    EXPECT_EQ(normalized(text), text);
  }
  EXPECT_EQ(normalized("e\u07fde\u0301"), "e\u07fd\u00e9");
  EXPECT_EQ(normalized("e\u07fd\u0301\u0327"), "e\u07fd\u0327\u0301");
}

// With utf8proc_map() this takes minutes.
TEST(Nfc, LongRunsOfMarks) {
  constexpr int kPairs = 300'000;
  std::string text = "x", expected = "x";
  for (int i = 0; i < kPairs; ++i) text += "\u0301\u0323";
  for (int i = 0; i < kPairs; ++i) expected += "\u0323";
  for (int i = 0; i < kPairs; ++i) expected += "\u0301";
  EXPECT_TRUE(normalized(text) == expected);
}

}  // namespace
}  // namespace octet::data
