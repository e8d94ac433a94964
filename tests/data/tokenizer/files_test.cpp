#include "octet/data/tokenizer/files.h"

#include "data/files.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {
namespace {

TEST(TokenizerFiles, AreFoundAsTheTokenizerIs) {
  const TemporaryFolder folder;
  folder.write("both/tokenizer.json", "{}");
  folder.write("both/tokenizer.model", "x");
  folder.write("one/tokenizer.model", "x");
  folder.write("none/config.json", "{}");
  EXPECT_EQ(tokenizer_file((folder / "both").string()), folder / "both/tokenizer.json");
  EXPECT_EQ(tokenizer_file((folder / "one").string()), folder / "one/tokenizer.model");
  EXPECT_EQ(tokenizer_file((folder / "one/tokenizer.model").string()), folder / "one/tokenizer.model");
  for (const std::string& spec :
       {std::string("byte"), (folder / "none").string(), (folder / "none/config.json").string(), std::string("nowhere/x")}) {
    EXPECT_EQ(tokenizer_file(spec), std::nullopt) << spec;
  }
  EXPECT_EQ(tokenizer_hash(folder / "one/tokenizer.model"), tokenizer_hash(folder / "both/tokenizer.model"));
  EXPECT_NE(tokenizer_hash(folder / "one/tokenizer.model"), tokenizer_hash(folder / "both/tokenizer.json"));
}

// A corpus of ready-made tokens names no tokenizer.
TEST(TokenizerFiles, AreNotTakenFromTheWorkingDirectoryForAnUnknownTokenizer) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", "{}");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto unknown = tokenizer_file(""), here = tokenizer_file(".");
  std::filesystem::current_path(before);
  EXPECT_EQ(unknown, std::nullopt);
  EXPECT_EQ(here, std::filesystem::path("./tokenizer.json"));
}

TEST(TokenizerFiles, GoAlongUnderTheirNames) {
  const TemporaryFolder folder;
  folder.write("from/mine.json", " {\"a\": 1}");
  folder.write("from/tokenizer_config.json", "{\"eos_token\": \"x\"}");
  folder.write("from/config.json", "stays");
  folder.write("from/tokenizer.model", "of another tokenizer, perhaps");
  folder.write("from/model.safetensors", "stays");
  std::filesystem::create_directories(folder / "to");
  copy_tokenizer_files(folder / "from/mine.json", folder / "to");
  EXPECT_EQ(names_in(folder / "to"), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_file(folder / "to/tokenizer.json"), " {\"a\": 1}");
  EXPECT_EQ(read_file(folder / "to/tokenizer_config.json"), "{\"eos_token\": \"x\"}");
  folder.write("ranks", "IQ== 0\n");
  copy_tokenizer_files(folder / "ranks", folder / "to");
  EXPECT_EQ(read_file(folder / "to/tokenizer.model"), "IQ== 0\n");
}

}  // namespace
}  // namespace octet::data
