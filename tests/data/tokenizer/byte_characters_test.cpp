#include "octet/data/tokenizer/byte_characters.h"

#include <gtest/gtest.h>

#include <set>

namespace octet::data {
namespace {

TEST(ByteCharacters, AsGpt2WritesThem) {
  EXPECT_EQ(character_of_byte(' '), "Ġ");
  EXPECT_EQ(character_of_byte('\n'), "Ċ");
  EXPECT_EQ(character_of_byte('a'), "a");
  EXPECT_EQ(character_of_byte(0xE4), "ä");
  EXPECT_EQ(character_of_byte(0xAD), "Ń");  // the soft hyphen is not printable
  std::set<std::string> all;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = character_of_byte(static_cast<unsigned char>(byte));
    all.insert(character);
    EXPECT_EQ(bytes_of_characters("x" + character), std::string("x") + static_cast<char>(byte));
  }
  EXPECT_EQ(all.size(), 256u);
}

TEST(ByteCharacters, OthersAreNone) {
  for (const char* text : {" ", "ń", "日", "😀", "a b", "\xC4"}) EXPECT_EQ(bytes_of_characters(text), std::nullopt) << text;
}

TEST(ByteCharacters, Fallback) {
  EXPECT_EQ(byte_token(0), "<0x00>");
  EXPECT_EQ(byte_token(0xAF), "<0xAF>");
}

}  // namespace
}  // namespace octet::data
