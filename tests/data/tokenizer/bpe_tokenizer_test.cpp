#include "octet/data/tokenizer/bpe_tokenizer.h"

#include <random>

#include "data/files.h"
#include "data/tokenizer/definitions.h"
#include "octet/base/threads.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

using Ids = std::vector<std::int32_t>;

// Makes text from the tokenizers' own parts, special tokens, rare characters and white space. It does not begin with a space.
std::string random_text(std::mt19937& random, const std::vector<std::string>& parts) {
  std::string text = "x";
  for (std::size_t i = 1 + random() % 60; i > 0; --i) text += parts[random() % parts.size()];
  return text;
}

const std::vector<std::string>& byte_parts() {
  static const std::vector<std::string> parts = {"hello",   " hello", " world", "or", "'LL",    "  ",       "\n",
                                                 " ",       "12345",  "日本",   "ä",  "\r\n",   "😀",        "!",
                                                 "<|end|>", "<|",     "\u180e", "ſ",  "\u00a0", "<|begin|>"};
  return parts;
}
// Letters, marks and jamo that NFC joins, and U+FB1D, a letter that it divides into a letter and a mark.
const std::vector<std::string>& joining_parts() {
  static const std::vector<std::string> parts = {"hello",  " world", " ",      "\n",     "e",      "\u0301",  "\u0327", "\u1112",
                                                 "\u1161", "\u11ab", "\ud558", "\ufb1d", "\u05b0", "<|end|>", "\u09c7", "\u09be"};
  return parts;
}
const std::vector<std::string>& metaspace_parts() {
  static const std::vector<std::string> parts = {"abc", " abc", "ab",   " ",   "   ", "a",  "c", "\n",
                                                 "é",   "😀",    "</s>", "<s>", "<",   "\t", "!"};
  return parts;
}

TEST(BpeTokenizer, WhatIsEncodedComesBack) {
  std::mt19937 random(1);
  const BpeTokenizer byte_level = tokenizer_of(byte_level_json());
  const BpeTokenizer doubled = tokenizer_of(metaspace_json()), first = tokenizer_of(metaspace_json("first", false)),
                     never = tokenizer_of(metaspace_json("never", true));
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(random, byte_parts());
    ASSERT_EQ(text_of(byte_level, ids_of(byte_level, text)), text);
    const std::string spaced = random_text(random, metaspace_parts());
    for (const BpeTokenizer* tokenizer : {&doubled, &first, &never}) {
      ASSERT_EQ(text_of(*tokenizer, ids_of(*tokenizer, spaced)), spaced);
    }
    ASSERT_EQ(text_of(doubled, ids_of(doubled, "  " + spaced)), "  " + spaced);
    ASSERT_EQ(text_of(never, ids_of(never, "  " + spaced)), "  " + spaced);
  }
}

TEST(BpeTokenizer, DecodingGoesOnWhereATextStands) {
  const BpeTokenizer tokenizer = tokenizer_of(metaspace_json());
  const Ids ids = ids_of(tokenizer, "abc abc");
  std::string text;
  for (const std::int32_t id : ids) tokenizer.decode(std::span(&id, 1), text);
  EXPECT_EQ(text, "abc abc");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { text_of(tokenizer, Ids{268}); }), "token 268"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { text_of(tokenizer, Ids{-1}); }), "token -1"));
}

TEST(BpeTokenizer, ATextMayBeCutWhereItSays) {
  std::mt19937 random(2);
  const auto check = [&](const BpeTokenizer& tokenizer, const std::vector<std::string>& parts) {
    int cuts = 0;
    for (int i = 0; i < 500; ++i) {
      const std::string text = random_text(random, parts);
      const std::size_t at = tokenizer.cut(text);
      if (at == 0) continue;
      ++cuts;
      for (const std::string& more : {std::string(), random_text(random, parts)}) {
        Ids ids = ids_of(tokenizer, text.substr(0, at));
        tokenizer.encode(text.substr(at) + more, ids);
        ASSERT_EQ(ids, ids_of(tokenizer, text + more)) << text << " at " << at;
      }
    }
    EXPECT_GT(cuts, 100);
  };
  check(tokenizer_of(byte_level_json()), byte_parts());
  check(tokenizer_of(metaspace_json("first", false)), metaspace_parts());
  check(tokenizer_of(metaspace_json("always", true)), metaspace_parts());
  Json normalizes = byte_level_json({"Ö °", "Ö° Ċ"});  // a mark and the line feed after it
  normalizes["normalizer"] = {{"type", "NFC"}};
  check(tokenizer_of(normalizes), joining_parts());
}

TEST(BpeTokenizer, CutsNothingWhereNfcPutsAMark) {
  Json json = byte_level_json();
  EXPECT_EQ(tokenizer_of(json).cut("\ufb1d\nx"), 3u);
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(tokenizer_of(json).cut("\ufb1d\nx"), 0u);
  EXPECT_EQ(tokenizer_of(json).cut("\ud558\nx"), 3u);
}

// Every text that is used here comes back from its ids, so the bytes of the ids before an id say where the id begins.
TEST(BpeTokenizer, CountsTheIdsBeforeAPlace) {
  std::mt19937 random(3);
  const auto check = [&](const BpeTokenizer& tokenizer, const std::vector<std::string>& parts) {
    for (int i = 0; i < 200; ++i) {
      const std::string text = random_text(random, parts);
      const Ids ids = ids_of(tokenizer, text);
      std::vector<std::size_t> begins, places, expected;
      for (std::size_t k = 0; k < ids.size(); ++k) begins.push_back(text_of(tokenizer, std::span(ids).first(k)).size());
      for (std::size_t at = 0; at <= text.size(); ++at) {
        places.push_back(at);
        expected.push_back(static_cast<std::size_t>(std::lower_bound(begins.begin(), begins.end(), at) - begins.begin()));
      }
      Ids again = {7};
      ASSERT_EQ(tokenizer.encode_counting(text, places, again), expected) << text;
      again.erase(again.begin());
      ASSERT_EQ(again, ids);
    }
  };
  check(tokenizer_of(byte_level_json()), byte_parts());
  check(tokenizer_of(metaspace_json()), metaspace_parts());
  check(tokenizer_of(metaspace_json("first", false)), metaspace_parts());
  check(tokenizer_of(metaspace_json("never", true)), metaspace_parts());
}

TEST(BpeTokenizer, CountsInTextsThatAreNormalized) {
  Json json = byte_level_json({"Ã ©"});
  json["normalizer"] = {{"type", "NFC"}};
  Ids ids;
  // é, \n, e, <|end|>, x
  const std::string text = "e\u0301\ne<|end|>x";
  EXPECT_EQ(tokenizer_of(json).encode_counting(text, std::vector<std::size_t>{0, 3, 4, 5, 6, 12, 13}, ids),
            (std::vector<std::size_t>{0, 1, 2, 3, 4, 4, 5}));
  EXPECT_EQ(ids, (Ids{256, '\n', 'e', 258, 'x'}));
}

TEST(BpeTokenizer, CountsTheSpaceThatBelongsToAToken) {
  Json json = metaspace_json();
  json["added_tokens"].push_back(added_token("<a b>", 268, true));
  Ids ids;  // ▁ab, "▁<a▁b>", a
  EXPECT_EQ(tokenizer_of(json).encode_counting("ab <a b>a", std::vector<std::size_t>{0, 1, 2, 3, 8, 9}, ids),
            (std::vector<std::size_t>{0, 1, 1, 2, 2, 3}));
  EXPECT_EQ(ids, (Ids{264, 268, 260}));
}

TEST(BpeTokenizer, CutsNothingWhereItCannotKnow) {
  EXPECT_EQ(tokenizer_of(metaspace_json()).cut("abc abc abc"), 0u);  // the text after the cut would get a space
  Json json = byte_level_json();
  json["added_tokens"].push_back(added_token("<|no way|>", 265));
  EXPECT_EQ(tokenizer_of(json).cut("hello hello"), 0u);  // a cut could fall within this token
  EXPECT_EQ(ids_of(tokenizer_of(json), "<|no way|>"), Ids{265});
}

TEST(BpeTokenizer, WrongBytesAreReplacementCharacters) {
  const BpeTokenizer tokenizer = tokenizer_of(byte_level_json());
  for (const std::string text : {"\xFF", "hello\xE6\x97 hello", "\xC0\x80\xED\xA0\x80", "\xF0\x9F\x98"}) {
    std::string replaced;
    append_replacing_invalid(text, replaced);
    EXPECT_EQ(ids_of(tokenizer, text), ids_of(tokenizer, replaced));
  }
}

TEST(BpeTokenizer, ManyThreadsAtOnce) {
  const BpeTokenizer tokenizer = tokenizer_of(byte_level_json());
  std::mt19937 random(5);
  std::vector<std::string> texts;
  std::vector<Ids> expected, ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i) texts.push_back(random_text(random, byte_parts()));
  for (const std::string& text : texts) expected.push_back(ids_of(tokenizer, text));
  set_num_threads(4);
  parallel_for(200,
               [&](std::int64_t i) { tokenizer.encode(texts[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(i)]); });
  EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace octet::data
