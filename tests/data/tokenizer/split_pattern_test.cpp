#include "octet/data/tokenizer/split_pattern.h"

#include "data/files.h"

namespace octet::data {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view regex, std::string_view text) {
  const SplitPattern pattern(regex, "t.json");
  SplitPattern::Matcher matcher;
  Words words;
  SplitPattern::Words found = pattern.words(text, matcher);
  for (std::string_view word; found.next(word);) words.emplace_back(word);
  return words;
}

TEST(SplitPattern, Llama3) {
  const auto regex = SplitPattern::llama3();
  EXPECT_EQ(split(regex, "Hello  world's I'LL"), (Words{"Hello", " ", " world", "'s", " I", "'LL"}));
  EXPECT_EQ(split(regex, "12345 6"), (Words{"123", "45", " ", "6"}));
  EXPECT_EQ(split(regex, "a  \n\n  b"), (Words{"a", "  \n\n", " ", " b"}));
  EXPECT_EQ(split(regex, "(x) !!\r\n\ty"), (Words{"(x", ")", " !!\r\n", "\ty"}));
  EXPECT_EQ(split(regex, "日本。\n語  "), (Words{"日本", "。\n", "語", "  "}));
  EXPECT_EQ(split(regex, ""), Words{});
}

TEST(SplitPattern, Gpt2) {
  EXPECT_EQ(split(SplitPattern::gpt2(), "I'll I'LL 12345\n\nx"), (Words{"I", "'ll", " I", "'", "LL", " 12345", "\n", "\n", "x"}));
}

// Characters for which the classes of PCRE2 differ from those of tokenizers 0.23.
TEST(SplitPattern, ClassesAreThoseOfUnicode16) {
  const auto regex = SplitPattern::llama3();
  EXPECT_EQ(split(regex, "a\u1c89b"), (Words{"a\u1c89b"}));                    // a letter since Unicode 16
  EXPECT_EQ(split(regex, "\U00031350x 1"), (Words{"\U00031350x", " ", "1"}));  // a letter since Unicode 15
  EXPECT_EQ(split(regex, "1\U00010d4012"), (Words{"1\U00010d40"
                                                  "1",
                                                  "2"}));            // a number since Unicode 16
  EXPECT_EQ(split(regex, "\u180e\u180e"), (Words{"\u180e\u180e"}));  // no white space since Unicode 6.3
  EXPECT_EQ(split(regex, "a\u180e b"), (Words{"a", "\u180e", " b"}));
}

TEST(SplitPattern, LongRunsTakeOneWord) {
  const std::string letters(3'000'000, 'x'), spaces(12'000'000, ' ');  // more than PCRE2's own limit of steps allows
  EXPECT_EQ(split(SplitPattern::llama3(), letters).size(), 1u);
  EXPECT_EQ(split(SplitPattern::llama3(), spaces + "x").size(), 2u);
}

TEST(SplitPattern, RefusesOthersByName) {
  const std::string error = error_of(ExitCode::config, [] { SplitPattern(R"(\w+|\W+)", "some/t.json"); });
  EXPECT_TRUE(contains(error, R"(some/t.json: split pattern \w+|\W+ is not supported)"));
}

TEST(SplitPattern, WordsEndBetweenLetterAndSpace) {
  const SplitPattern pattern(SplitPattern::llama3(), "t.json");
  SplitPattern::Matcher matcher;
  EXPECT_TRUE(pattern.ends_word("a b", 1, matcher));
  EXPECT_TRUE(pattern.ends_word("語\n", 3, matcher));
  EXPECT_FALSE(pattern.ends_word("1 b", 1, matcher));
  EXPECT_FALSE(pattern.ends_word("! b", 1, matcher));
  EXPECT_FALSE(pattern.ends_word("a b", 2, matcher));
  EXPECT_FALSE(pattern.ends_word("\x9E b", 1, matcher));  // half a character
}

}  // namespace
}  // namespace octet::data
