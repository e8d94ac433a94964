#include "octet/data/tokenizer/tiktoken.h"

#include "data/files.h"
#include "data/tokenizer/definitions.h"

namespace octet::data {
namespace {

using Ids = std::vector<std::int32_t>;

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) text.push_back(i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63]);
  }
  return text;
}

std::string ranks() {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    text += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  for (const char* token : {"he", "ll", "hell", "hello", " w", "or", "zyx"})
    text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

BpeTokenizer tiktoken_from(const std::string& bytes) {
  return BpeTokenizer(read_tiktoken(bytes, "t.model"), "t", "0000000000000000");
}

TEST(Tiktoken, JoinsByRankAndTakesWordsWhole) {
  const BpeTokenizer tokenizer = tiktoken_from(ranks());
  EXPECT_EQ(tokenizer.vocab_size(), 263 + 256);
  EXPECT_EQ(ids_of(tokenizer, "hello world"), (Ids{259, 260, 261, 'l', 'd'}));
  EXPECT_EQ(ids_of(tokenizer, "zyx zyx"), (Ids{262, ' ', 'z', 'y', 'x'}));  // no merges make 262; whole words are looked up
  EXPECT_EQ(ids_of(tokenizer, "<|end_of_text|>").size(), 15u);              // the names of special tokens are plain text
  EXPECT_EQ(Ids(tokenizer.prefix().begin(), tokenizer.prefix().end()), Ids{263});
  EXPECT_EQ(tokenizer.end_of_document(), 264);
  EXPECT_EQ(text_of(tokenizer, Ids{263, 259, 264, 263 + 9, 263 + 10, 263 + 255}),
            "<|begin_of_text|>hello<|end_of_text|><|eot_id|><|reserved_special_token_5|><|reserved_special_token_250|>");
}

TEST(Tiktoken, ToldFromOtherFiles) {
  EXPECT_TRUE(looks_like_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_TRUE(looks_like_tiktoken("IQ== 0\r\n"));
  for (const char* text : {"", "{}", "IQ==", "IQ== x", "I!== 0", "IQ= 0", "IQ== -1", "\x0A\x0E", "==== 0"}) {
    EXPECT_FALSE(looks_like_tiktoken(text)) << text;
  }
}

TEST(Tiktoken, RefusesMoreRanksThanLlama3Has) {
  std::string bytes = ranks();
  int rank = 263;
  const auto add_up_to = [&](int count) {
    for (; rank < count; ++rank) bytes += base64("word" + std::to_string(rank)) + " " + std::to_string(rank) + "\n";
  };
  add_up_to(128'000);
  EXPECT_EQ(tiktoken_from(bytes).vocab_size(), 128'256);
  add_up_to(128'001);
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tiktoken_from(bytes); }), "t.model: 128001 ranks are not supported"));
}

TEST(Tiktoken, SaysWhatIsBrokenAndWhere) {
  const auto broken = [](const std::string& bytes, const char* named) {
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { tiktoken_from(bytes); }), named));
  };
  broken(ranks() + "x\n", "t.model:264: neither a token in base64 nor its rank");
  broken(ranks() + "IQ== 999\n", "rank 999 among 264");
  broken(ranks() + base64("new") + " 5\n", "rank 5 appears twice");
  broken("IQ== 0\n", "no token for byte 0");
  broken(ranks() + base64(std::string(2000, 'a')) + " 263\n", "a token of 2000 bytes");
}

}  // namespace
}  // namespace octet::data
