// Whether a corpus is that of the model's tokenizer, and the one that a run began with.
#include "data/tokenizer/definitions.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// A run that begins with the model directory "published", which has a tokenizer.json.
class CorpusOfModel : public ::testing::Test {
 protected:
  CorpusOfModel() {
    EXPECT_EQ(run_.train("--training.steps=1 --model.vocab_size=512").code, 0);
    Json config = Json::parse(read_file(run_ / "out/model/config.json"));
    config.erase("tokenizer");
    fs::create_directories(run_ / "published");
    write_text(run_ / "published/config.json", config.dump());
    write_tokenizer("published", data::byte_level_json());
    std::string toml = tiny_toml();
    const std::size_t begin = toml.find("[model]"), end = toml.find("[[data.source]]");
    write_text(run_ / "from.toml", toml.replace(begin, end - begin, "[model]\ninit_from = \"published\"\n"));
    std::string lines;
    for (const std::string& document : tiny_documents()) lines += Json({{"text", document}}).dump() + "\n";
    write_text(run_ / "lines.jsonl", lines);
  }
  void write_tokenizer(const std::string& directory, const Json& json, int indent = -1) const {
    fs::create_directories(run_ / directory);
    write_text(run_ / directory / "tokenizer.json", json.dump(indent));
  }
  // The corpus, made anew.
  void prepare(const std::string& tokenizer) const {
    const ProgramResult result = run_.run("data prepare --input lines.jsonl --output corpus --tokenizer " + tokenizer);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  ProgramResult train(const std::string& options = "") const {
    return run_.run("train from.toml --resume none --training.steps=1 " + options);
  }
  ::testing::AssertionResult trains_in_silence(const std::string& options = "") const {
    const ProgramResult result = train(options);
    if (result.code == 0 && result.err.find("tokenizer") == std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "exit code " << result.code << "\n" << result.err;
  }
  static ::testing::AssertionResult warns(const ProgramResult& result, const std::string& text) {
    const std::string warning = "warning: corpus.json: prepared with tokenizer other, but the model's is " + text;
    if (result.code == 0 && result.err.find(warning) != std::string::npos) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "exit code " << result.code << "\n" << result.err;
  }
  TinyRun run_;
};

TEST_F(CorpusOfModel, OfBytesIsRefusedUnlessTheRunSaysSo) {
  EXPECT_TRUE(refused(train(), 76, "corpus.json: prepared with tokenizer byte, but the model's is published/tokenizer.json",
                      "--tokenizer published", "model.tokenizer = \"byte\""));
  EXPECT_TRUE(trains_in_silence("--model.tokenizer=byte"));
  EXPECT_TRUE(refused(run_.run("eval from.toml --model.tokenizer= --checkpoint out/checkpoints/step-00000001"), 76, "corpus.json",
                      "published/tokenizer.json"));
  prepare("published");
  EXPECT_TRUE(trains_in_silence());
  EXPECT_TRUE(refused(train("--model.tokenizer=byte"), 76,
                      "corpus.json: prepared with tokenizer published, but the model's is byte"));
}

TEST_F(CorpusOfModel, OfAnotherTokenizerIsRefused) {
  write_tokenizer("other", data::metaspace_json());
  prepare("other");
  EXPECT_TRUE(refused(train(), 76, "corpus.json: prepared with tokenizer other, but the model's is published/tokenizer.json; 26",
                      " ids stand for other texts", "--tokenizer published"));
}

// In other bytes, and with a token that the model was given later.
TEST_F(CorpusOfModel, OfTheSameTokenizerInAnotherFormIsTaken) {
  write_tokenizer("other", data::byte_level_json(), 2);
  prepare("other");
  EXPECT_TRUE(trains_in_silence());
  Json more = data::byte_level_json();
  more["added_tokens"].push_back(data::added_token("<|pad|>", 265));
  write_tokenizer("published", more);
  EXPECT_TRUE(trains_in_silence());
  // Merges of another training, which in so small a vocabulary are few.
  write_tokenizer("published", data::byte_level_json({"t h", "th e", "e r", "i n", "Ġ the", "o u", "ou r"}));
  EXPECT_TRUE(warns(train(), "published/tokenizer.json; 7 of 265 ids stand for other texts"));
}

TEST_F(CorpusOfModel, OfATokenizerThatHasGoneIsJudgedByItsSize) {
  write_tokenizer("other", data::byte_level_json(), 2);
  prepare("other");
  fs::remove_all(run_ / "other");
  EXPECT_TRUE(warns(train(), "published/tokenizer.json; they are not the same file"));
  Json info = Json::parse(read_file(run_ / "corpus.json"));
  info["vocab_size"] = 400;
  write_text(run_ / "corpus.json", info.dump());
  EXPECT_TRUE(refused(train(), 76, "corpus.json", "published/tokenizer.json", " tokens instead of 400"));
  // What cannot be read says nothing about its size.
  write_text(run_ / "published/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  EXPECT_EQ(train().code, 0);
  // Of a corpus without PREFIX.json nobody knows.
  fs::remove(run_ / "corpus.json");
  EXPECT_TRUE(trains_in_silence());
}

}  // namespace
}  // namespace octet::testing
