#include "octet/data/tokenizer/tokenizer.h"

#include "data/files.h"
#include "data/tokenizer/definitions.h"

namespace octet::data {
namespace {

TEST(ByteTokenizer, IdsAreTheBytesAndComeBack) {
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_FALSE(tokenizer->end_of_document());
  EXPECT_EQ(tokenizer->hash().size(), 16u);
  std::string all;
  for (int c = 0; c < 256; ++c) all.push_back(static_cast<char>(c));
  std::vector<std::int32_t> ids = {7};
  tokenizer->encode(all, ids);
  ASSERT_EQ(ids.size(), 257u);
  EXPECT_EQ(ids[0], 7);  // encode() appends
  for (std::int32_t c = 0; c < 256; ++c) EXPECT_EQ(ids[static_cast<std::size_t>(c) + 1], c);
  std::string text;
  tokenizer->decode(std::span(ids).subspan(1), text);
  EXPECT_EQ(text, all);
  const std::vector<std::int32_t> wrong = {65, 256};
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { tokenizer->decode(wrong, text); }), "256"));
}

TEST(MakeTokenizer, ReadsConfigJson) {
  const TemporaryFolder folder;
  folder.write("model/config.json", R"({"vocab_size": 256, "tokenizer": "byte"})");
  EXPECT_EQ(make_tokenizer((folder / "model").string())->name(), "byte");
  EXPECT_EQ(make_tokenizer((folder / "model/config.json").string())->name(), "byte");
  EXPECT_EQ(make_tokenizer((folder / "model").string())->hash(), make_tokenizer("byte")->hash());
}

TEST(MakeTokenizer, ReadsFilesByWhatTheyHold) {
  const TemporaryFolder folder;
  const std::string json = byte_level_json().dump();
  folder.write("hf/config.json", R"({"model_type": "llama", "eos_token_id": 264})");
  folder.write("hf/tokenizer.json", json);
  folder.write("hf/tokenizer.model", "not looked at");
  const std::string directory = (folder / "hf").string();
  const auto tokenizer = make_tokenizer(directory);
  EXPECT_EQ(tokenizer->name(), directory);
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->end_of_document(), 264);
  EXPECT_EQ(make_tokenizer(directory, DocumentEnd::none)->end_of_document(), std::nullopt);
  const auto elsewhere = folder.write("other.txt", json);
  EXPECT_EQ(make_tokenizer(elsewhere.string())->end_of_document(), std::nullopt);
  EXPECT_EQ(make_tokenizer(elsewhere.string())->hash(), tokenizer->hash());
  folder.write("other.txt", byte_level_json({"a b"}).dump());
  EXPECT_NE(make_tokenizer(elsewhere.string())->hash(), tokenizer->hash());
}

TEST(MakeTokenizer, RefusesByName) {
  const TemporaryFolder folder;
  const auto refuse = [](ExitCode code, const std::string& spec) { return error_of(code, [&] { make_tokenizer(spec); }); };
  EXPECT_TRUE(contains(refuse(ExitCode::config, "bytes"), "did you mean byte"));
  EXPECT_TRUE(contains(refuse(ExitCode::data, "./nowhere/tokenizer.json"), "./nowhere/tokenizer.json: no such"));
  const auto model = folder.write("tokenizer.model", "x");
  EXPECT_TRUE(contains(refuse(ExitCode::data, model.string()), "tokenizer.model: neither a SentencePiece model nor ranks"));
  folder.write("hf/config.json", R"({"model_type": "llama"})");
  EXPECT_TRUE(contains(refuse(ExitCode::data, (folder / "hf").string()), "no tokenizer"));
  folder.write("hf/tokenizer.json", "{}");
  EXPECT_TRUE(contains(refuse(ExitCode::config, (folder / "hf").string()), "tokenizer.json: a tokenizer without pre_tokenizer"));
  folder.write("gpt2/vocab.json", "{}");
  EXPECT_TRUE(contains(refuse(ExitCode::config, (folder / "gpt2").string()), "vocab.json: this kind of tokenizer is not supported"));
  folder.write("other/config.json", R"({"tokenizer": "byt"})");
  EXPECT_TRUE(contains(refuse(ExitCode::config, (folder / "other").string()), "\"byt\" is not supported (did you mean byte?)"));
  for (const char* broken : {"", "{", "[]", R"({"tokenizer": 3})"}) {
    folder.write("broken/config.json", broken);
    EXPECT_TRUE(contains(refuse(ExitCode::data, (folder / "broken").string()), "config.json: "));
  }
}

}  // namespace
}  // namespace octet::data
