#include "octet/data/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace octet::data {
namespace {

TEST(AddedTokens, TheLeftmostAndThereTheLongest) {
  const AddedTokens tokens({{"<|a|>", 1}, {"<|ab|>", 2}, {"<|a|>!", 3}, {"b|>", 4}, {"<|a|>", 5}});
  const auto expect = [&](std::string_view text, std::size_t from, std::size_t begin, std::size_t end, std::int32_t id) {
    const AddedTokens::Match match = tokens.find(text, from);
    EXPECT_EQ(match.begin, begin) << text;
    EXPECT_EQ(match.end, end) << text;
    EXPECT_EQ(match.id, id) << text;
  };
  expect("x<|a|>y", 0, 1, 6, 1);  // the first of two equal ones
  expect("x<|a|>!", 0, 1, 7, 3);
  expect("<|ab|>", 0, 0, 6, 2);
  expect("<|ab|>", 1, 3, 6, 4);
  expect("<|<|a|>", 0, 2, 7, 1);
  expect("<|ab", 0, 4, 4, -1);
  expect("", 0, 0, 0, -1);
  EXPECT_FALSE(tokens.empty());
  EXPECT_TRUE(AddedTokens({}).empty());
  EXPECT_EQ(AddedTokens({}).find("abc", 0).begin, 3u);
}

}  // namespace
}  // namespace octet::data
