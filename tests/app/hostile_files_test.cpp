// Files from outside that would overflow the stack, never end or exhaust the machine: one line on stderr, the right exit code, at once.
#include <sys/stat.h>

#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class HostileFiles : public ::testing::Test {
 protected:
  // A model directory whose files a test replaces.
  void make_model() const {
    fs::create_directories(run_ / "hf");
    write_text(run_ / "hf/config.json",
               R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                  "num_attention_heads": 2, "max_position_embeddings": 64, "tokenizer": "byte"})");
  }
  void make_pipe(const std::string& name) const {
    fs::remove(run_ / name);
    ASSERT_EQ(::mkfifo((run_ / name).c_str(), 0600), 0);
  }
  static std::string repeat(const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  }
  TinyRun run_;
};

TEST_F(HostileFiles, NestingIsRefusedWithFileAndPlace) {
  make_model();
  const std::string brackets(200'000, '['), depth = "nested deeper than 64 levels";
  write_text(run_ / "hf/tokenizer.json", "{\"a\": " + brackets);
  EXPECT_TRUE(refused(run_.run("data prepare --input run.toml --output c --tokenizer hf/tokenizer.json"), 76,
                      "hf/tokenizer.json: line 1, column 70: " + depth));
  write_text(run_ / "hf/config.json", brackets);
  EXPECT_TRUE(refused(run_.train("--model.init_from=hf"), 76, "hf/config.json: line 1, column 65: " + depth));
  EXPECT_TRUE(refused(run_.run("generate --model hf --prompt x"), 76, "hf/config.json: line 1, column 65: " + depth));
  write_text(run_ / "corpus.json", brackets);
  EXPECT_TRUE(refused(run_.train(), 76, "corpus.json: line 1, column 65: " + depth));
  write_text(run_ / "x.jsonl", "{\"text\": \"a\"}\n{\"x\": " + brackets + "\n");
  EXPECT_TRUE(refused(run_.run("data prepare --input x.jsonl --output c"), 76, "x.jsonl:2: column 70: " + depth));
  write_text(run_ / "deep.toml", repeat("a.", 200'000) + "a = 1\n");
  EXPECT_TRUE(refused(run_.run("train deep.toml"), 2, "deep.toml:1: " + depth));
  write_text(run_ / "deep.toml", "[" + repeat("a.", 200'000) + "a]\n");
  EXPECT_TRUE(refused(run_.run("train run.toml --model.config=deep.toml"), 2, depth));
  EXPECT_TRUE(refused(run_.train("--" + repeat("a.", 50'000) + "a=1"), 2, depth));
}

TEST_F(HostileFiles, DoubledKeysAreRefused) {
  make_model();
  write_text(run_ / "hf/config.json", "{\"model_type\": \"llama\",\n \"vocab_size\": 1, \"vocab_size\": 2}");
  EXPECT_TRUE(refused(run_.train("--model.init_from=hf"), 76, "hf/config.json: line 2, column 30: \"vocab_size\" occurs twice"));
}

TEST_F(HostileFiles, PipesAndDevicesAreNotReadAsFiles) {
  make_model();
  const std::string pipe = ": not a regular file but a pipe";
  make_pipe("pipe");
  EXPECT_TRUE(refused(run_.run("train pipe"), 2, "pipe" + pipe));
  EXPECT_TRUE(refused(run_.run("train /dev/zero"), 2, "/dev/zero: not a regular file but a device"));
  EXPECT_TRUE(refused(run_.run("data prepare --input run.toml --output c --tokenizer pipe"), 76, "pipe"));
  EXPECT_TRUE(refused(run_.run("data prepare --input pipe --output c"), 76, "pipe: neither a file nor a folder"));
  make_pipe("hf/model.safetensors");
  EXPECT_TRUE(refused(run_.train("--model.init_from=hf"), 76, "hf/model.safetensors" + pipe));
  EXPECT_TRUE(refused(run_.run("generate --model hf --prompt x"), 76, "hf/model.safetensors" + pipe));
  make_pipe("hf/config.json");
  EXPECT_TRUE(refused(run_.train("--model.init_from=hf"), 76, "hf/config.json" + pipe));
  EXPECT_TRUE(refused(run_.train("--model.config=hf/config.json"), 2, "hf/config.json" + pipe));
  make_pipe("corpus.bin");
  EXPECT_TRUE(refused(run_.train(), 76, "corpus.bin" + pipe));
  make_pipe("corpus.idx");
  EXPECT_TRUE(refused(run_.train(), 76, "corpus.idx" + pipe));
}

// A missing corpus is said before anything is printed.
TEST_F(HostileFiles, TheCorpusIsLookedForFirst) {
  fs::remove(run_ / "corpus.bin");
  const ProgramResult result = run_.train();
  EXPECT_TRUE(refused(result, 76, "corpus.bin: No such file or directory"));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(run_.train("--dry-run").code, 0);
}

TEST_F(HostileFiles, ThreadsAreBounded) {
  for (const char* count : {"1000", "1000000"})
    EXPECT_TRUE(refused(run_.train(std::string("--run.threads=") + count), 2, std::string("run.threads = ") + count + ": must be at most ",
                        "which is 4 for each of the "));
  EXPECT_TRUE(refused(run_.run("data prepare --input run.toml --output c --workers 1000"), 2, "--workers = 1000: must be at most "));
}

}  // namespace
}  // namespace octet::testing
