// Checks that a corpus was prepared with the model's tokenizer, and that a resumed run uses the corpus that it began with.
#include "data/tokenizer/definitions.h"
#include "octet/checkpoint/manifest.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// A run that starts from the model directory "published", which has a tokenizer.json.
class CorpusOfModel : public ::testing::Test {
 protected:
  CorpusOfModel() {
    EXPECT_EQ(run_.train("--training.steps=1 --model.vocab_size=512").code, 0);
    Json config = json_of(read_file(run_ / "out/model/config.json"));
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
  // Prepares the corpus again.
  void prepare(const std::string& tokenizer) const {
    const ProgramResult result = run_.run("data prepare --input lines.jsonl --output corpus --tokenizer " + tokenizer);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  ProgramResult train(const std::string& options = "") const {
    return run_.run("train from.toml --resume none --run.set_aside=true --training.steps=1 " + options);
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
                      " ids stand for different texts", "--tokenizer published"));
}

// The tokenizer's file has other bytes, or the model has got another token since.
TEST_F(CorpusOfModel, OfTheSameTokenizerInAnotherFormIsTaken) {
  write_tokenizer("other", data::byte_level_json(), 2);
  prepare("other");
  EXPECT_TRUE(trains_in_silence());
  Json more = data::byte_level_json();
  more["added_tokens"].push_back(data::added_token("<|pad|>", 265));
  write_tokenizer("published", more);
  EXPECT_TRUE(trains_in_silence());
  // The merges come from another training. In such a small vocabulary only few differ.
  write_tokenizer("published", data::byte_level_json({"t h", "th e", "e r", "i n", "Ġ the", "o u", "ou r"}));
  EXPECT_TRUE(warns(train(), "published/tokenizer.json; 7 of 265 ids stand for different texts"));
}

TEST_F(CorpusOfModel, OfATokenizerThatHasGoneIsJudgedByItsSize) {
  write_tokenizer("other", data::byte_level_json(), 2);
  prepare("other");
  fs::remove_all(run_ / "other");
  EXPECT_TRUE(warns(train(), "published/tokenizer.json; the files differ"));
  Json info = json_of(read_file(run_ / "corpus.json"));
  info["vocab_size"] = 400;
  write_text(run_ / "corpus.json", info.dump());
  EXPECT_TRUE(refused(train(), 76, "corpus.json", "published/tokenizer.json", " tokens instead of 400"));
  // A tokenizer that cannot be read has no known size.
  write_text(run_ / "published/tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  EXPECT_EQ(train().code, 0);
  // Without PREFIX.json nothing is known about the corpus's tokenizer.
  write_tokenizer("published", data::byte_level_json());
  fs::remove(run_ / "corpus.json");
  EXPECT_TRUE(trains_in_silence());
}

// --- The corpus of a resume -------------------------------------------------------------------------------------------------

class CorpusOfResume : public ::testing::Test {
 protected:
  CorpusOfResume() {
    write_corpus(run_ / "second", tiny_documents(30));
    EXPECT_EQ(run_.train("--training.steps=3").code, 0);
  }
  ProgramResult resume(const std::string& options = "") const { return run_.train("--training.steps=6 " + options); }
  ::testing::AssertionResult resumes(const std::string& options = "") const {
    const ProgramResult result = resume(options);
    const bool resumed = result.err.find("resuming after step 3 from") != std::string::npos;
    if (result.code == 0 && resumed) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "exit code " << result.code << "\n" << result.err;
  }
  // Replaces the corpus by another one with as many documents and tokens.
  void replace() const {
    std::vector<std::string> documents = tiny_documents();
    documents[7][11] = '!';
    write_corpus(run_ / "corpus", documents);
  }
  TinyRun run_;
};

TEST_F(CorpusOfResume, IsTheOneOfTheCheckpoint) {
  const std::string before = read_file(run_ / "out/checkpoints/step-00000003/manifest.json");
  const std::string sum = json_of(read_file(run_ / "corpus.json"))["bin_xxh3"];
  replace();
  EXPECT_TRUE(refused(resume(), 76, "octet: corpus: not the corpus that out/checkpoints/step-00000003 was trained on",
                      "then 24 documents", sum, "run.output_dir", "--resume none", "--checkpoint.allow=data"));
  EXPECT_TRUE(refused(resume("--resume out/checkpoints/step-00000003 --run.output_dir=branch"), 76, "octet: corpus: "));
  EXPECT_TRUE(refused(resume("--data.source.0.path=./corpus.bin"), 76, "octet: corpus: "));
  EXPECT_EQ(read_file(run_ / "out/checkpoints/step-00000003/manifest.json"), before);
  EXPECT_FALSE(std::filesystem::exists(run_ / "branch"));
  // Follows the advice in the message.
  EXPECT_EQ(resume("--run.output_dir=anew").code, 0);
  for (const std::string end : {".bin", ".idx", ".json"}) fs::rename(run_ / ("corpus" + end), run_ / ("new" + end));
  EXPECT_TRUE(resumes("--data.source.0.path=new --checkpoint.allow=data"));
  EXPECT_EQ(run_.train("--resume none --run.set_aside=true --data.source.0.path=new").code, 0);
}

TEST_F(CorpusOfResume, MayBeTheSameMadeAnew) {
  write_corpus(run_ / "corpus", tiny_documents());
  EXPECT_TRUE(resumes());
}

TEST_F(CorpusOfResume, MayBeChangedInTheConfiguration) {
  EXPECT_TRUE(resumes("--data.source.1.path=second --data.source.1.weight=0.5 --checkpoint.allow=data"));
  EXPECT_EQ(run_.train("--resume none --run.set_aside=true --training.steps=3 --data.source.1.path=second").code, 0);
  EXPECT_TRUE(resumes("--checkpoint.allow=data"));
}

TEST_F(CorpusOfResume, WithoutSumsIsKnownByItsSize) {
  const std::string info = read_file(run_ / "corpus.json");
  fs::remove(run_ / "corpus.json");
  EXPECT_TRUE(resumes());
  EXPECT_EQ(run_.train("--resume none --run.set_aside=true --training.steps=3").code, 0);
  write_text(run_ / "corpus.json", info);
  EXPECT_TRUE(resumes());
  EXPECT_EQ(run_.train("--resume none --run.set_aside=true --training.steps=3").code, 0);
  write_corpus(run_ / "corpus", tiny_documents(25));
  fs::remove(run_ / "corpus.json");
  EXPECT_TRUE(refused(resume(), 76, "octet: corpus: not the corpus that", "25 documents", "then 24 documents"));
}

// Checkpoints of earlier versions do not record their corpus.
TEST_F(CorpusOfResume, GoesOnWhereNobodyKnows) {
  const fs::path file = run_ / "out/checkpoints/step-00000003/manifest.json";
  checkpoint::Manifest manifest = checkpoint::parse_manifest(read_file(file), "manifest");
  ASSERT_EQ(manifest.meta.erase("sources"), 1u);
  write_text(file, checkpoint::to_json(manifest));
  replace();
  EXPECT_TRUE(resumes());
}

// A corpus of bytes leaves most embeddings of a large vocabulary untrained.
TEST(CorpusOfBytes, AMuchLargerVocabularyIsWarnedOf) {
  const TinyRun run;
  const auto warnings = [&](const std::string& arguments) {
    const ProgramResult result = run.run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    const std::string warning =
        "warning: corpus.json: the corpus has 256 token ids (tokenizer byte), but model.vocab_size = 513: no token trains the "
        "embeddings of the other 257. Give --model.vocab_size=256, or prepare the corpus with the model's tokenizer\n";
    std::size_t count = 0;
    for (std::size_t at = 0; (at = result.err.find(warning, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const std::string train = "train run.toml --resume none --run.set_aside=true --training.micro_batch_size=1 --training.steps=1";
  EXPECT_EQ(warnings(train + " --model.vocab_size=512"), 0u);  // no more than half of the embeddings
  EXPECT_EQ(warnings(train + " --model.vocab_size=513"), 1u);
  EXPECT_EQ(warnings("launch -n 2 -- " + train + " --model.vocab_size=513"), 1u);
}

}  // namespace
}  // namespace octet::testing
