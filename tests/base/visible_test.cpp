#include "octet/base/visible.h"

#include <gtest/gtest.h>

#include <random>

namespace octet {
namespace {

TEST(Visible, OneLineIsSafeOnATerminal) {
  EXPECT_EQ(printable("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(printable("\x1b[31mred\x7f\r"), "\\x1b[31mred\\x7f\\x0d");
  EXPECT_EQ(printable("\xC2\x9B" "31m"), "\\u009b31m");  // a control sequence in one character
  EXPECT_EQ(printable("cut \xE2\x82"), "cut \\xe2\\x82");
  EXPECT_EQ(printable("overlong \xC0\x9B, surrogate \xED\xA0\x80"), "overlong \\xc0\\x9b, surrogate \\xed\\xa0\\x80");
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
}

TEST(Visible, InvisibleCharactersAreShown) {
  EXPECT_EQ(printable("gpj.\u202Eexe"), "gpj.\\u202eexe");
  EXPECT_EQ(printable("a\u200Bb\u2060c\uFEFFd\u00ADe"), "a\\u200bb\\u2060c\\ufeffd\\u00ade");
  EXPECT_EQ(printable("\u2066x\u2069\u200F\u061C\u2028"), "\\u2066x\\u2069\\u200f\\u061c\\u2028");
  EXPECT_EQ(printable("tag \U000E0041"), "tag \\U000e0041");
}

TEST(Visible, TextOfAnyScriptStays) {
  for (const char* text : {"sch\u00F6n", "\u65E5\u672C\u8A9E", "\u0627\u0644\u0639\u0631\u0628\u064A\u0629", "\u05E2\u05D1\u05E8\u05D9\u05EA",
                           "\u0645\u06CC\u200C\u062E\u0648\u0627\u0647\u0645", "\u0915\u094D\u200D\u0937", "\U0001F469\u200D\U0001F52C",
                           "\u2764\uFE0F", "e\u0301", "\u2501\u2578\u2581"})
    EXPECT_EQ(printable(text), text);
}

TEST(Visible, QuotesAreCut) {
  EXPECT_EQ(in_quotes("a\x1b"), "\"a\\x1b\"");
  EXPECT_EQ(in_quotes(std::string(500, 'x')), "\"" + std::string(200, 'x') + "...\"");
}

// `sh` is the judge of what a word is.
TEST(Visible, AWordOfAShellIsOneWord) {
  for (const char* plain : {"out/run-1", "s3://bucket/x", "a=b", "\xC3\xBC"}) EXPECT_EQ(shell_word(plain), plain);
  for (const std::string text : {"", "a b", "it's", "$HOME", "~/x", "`x`", "a\nb", "*", "\"", "\\", "a;b", "#"}) {
    FILE* const shell = ::popen(("printf '%s.' " + shell_word(text)).c_str(), "r");
    std::string said(100, '\0');
    said.resize(std::fread(said.data(), 1, said.size(), shell));
    ::pclose(shell);
    EXPECT_EQ(said, text + ".");
  }
}

// However a text is cut into pieces, what is written is the same, and no byte of a control sequence passes.
TEST(Visible, AStreamInPiecesIsTheSame) {
  std::mt19937 random(7);
  const std::string alphabet = "a\n\t\x1b[\xC2\x9B\xE2\x80\xAE\xF0\x9F\x98\x80\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += alphabet[random() % alphabet.size()];
    text += "end\n";
    VisibleText whole, cut;
    const std::string expected = whole.feed(text);
    std::string actual;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 4, text.size() - at);
      actual += cut.feed(std::string_view(text).substr(at, size));
      at += size;
    }
    ASSERT_EQ(actual, expected);
    ASSERT_EQ(expected.find_first_of("\x1b\r\x7f"), std::string::npos);
    ASSERT_EQ(expected.find("\xC2\x9B"), std::string::npos);
    ASSERT_EQ(expected.find("\xE2\x80\xAE"), std::string::npos);
    for (std::size_t at = 0; at < expected.size();) {
      const std::size_t length = utf8_length(std::string_view(expected).substr(at));
      ASSERT_GT(length, 0u) << "not UTF-8";
      at += length;
    }
  }
}

}  // namespace
}  // namespace octet
