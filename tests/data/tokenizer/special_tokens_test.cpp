#include "octet/data/tokenizer/special_tokens.h"

#include "data/files.h"

namespace octet::data {
namespace {

TEST(SpecialTokens, TheFirstFileThatNamesTheEndCounts) {
  const TemporaryFolder folder;
  BpeDefinition definition;
  definition.file = "t.json";
  definition.pieces = {"a", "<end>", "<stop>", "<last>"};
  const auto end = [&] { return end_of_document(folder.path(), definition); };
  EXPECT_EQ(end(), std::nullopt);
  definition.end_of_document = 0;
  EXPECT_EQ(end(), 0);
  folder.write("config.json", R"({"eos_token_id": [3, 1]})");
  EXPECT_EQ(end(), 3);
  folder.write("config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(end(), 1);
  folder.write("special_tokens_map.json", R"({"eos_token": "<stop>"})");
  EXPECT_EQ(end(), 2);
  folder.write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(end(), 2);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>", "lstrip": false}})");
  EXPECT_EQ(end(), 1);
}

TEST(SpecialTokens, SaysWhatIsWrong) {
  BpeDefinition definition;
  definition.file = "t.json";
  definition.pieces = {"a"};
  const auto error = [&](const char* name, const char* text) {
    const TemporaryFolder folder;
    folder.write(name, text);
    return error_of(ExitCode::data, [&] { end_of_document(folder.path(), definition); });
  };
  EXPECT_TRUE(contains(error("tokenizer_config.json", R"({"eos_token": "b"})"), "eos_token \"b\" is not a token of t.json"));
  EXPECT_TRUE(contains(error("tokenizer_config.json", R"({"eos_token": 3})"), "must be a string"));
  EXPECT_TRUE(contains(error("tokenizer_config.json", "["), "not valid JSON"));
  EXPECT_TRUE(contains(error("config.json", R"({"eos_token_id": 1})"), "eos_token_id 1"));
}

}  // namespace
}  // namespace octet::data
