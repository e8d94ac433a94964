// Text from files, options and models cannot control the terminal of the user who looks at it. Files and pipes keep the bytes.
#include <fstream>

#include "octet/checkpoint/safetensors.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/tokenizer/byte.h"
#include "octet/tensor/host_tensor.h"
#include "support/terminal.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

// Sets the window's title, clears the screen, and reverses text.
const std::string kAttack = "\x1b]0;owned\x07\x1b[2J\xC2\x9B" "1m\u202E";
const std::string kShown = "\\x1b]0;owned\\x07\\x1b[2J\\u009b1m\\u202e";

// `$'...'` of bash is not in every sh: options with such bytes come from a file.
std::string in_file(const TinyRun& run, const std::string& name, const std::string& bytes) {
  write_text(run / name, bytes);
  return "\"$(cat " + name + ")\"";
}

// What the terminal saw, after `commands` ended with `code`: nothing but text.
std::string seen(const TinyRun& run, const std::string& arguments, int code) {
  TerminalProgram program(arguments, run.path(), 1000);
  EXPECT_EQ(program.wait(), code) << program.bytes();
  EXPECT_TRUE(program.screen().unknown().empty()) << ::testing::PrintToString(program.screen().unknown());
  for (const std::string& bytes : {std::string("\x07"), std::string("\x1b]"), std::string("\x1b[2J"), std::string("\xC2\x9B"), std::string("\u202E")})
    EXPECT_EQ(program.bytes().find(bytes), std::string::npos) << program.bytes();
  return program.bytes();
}

TEST(TerminalText, MessagesOfErrors) {
  const TinyRun run;
  const std::string name = in_file(run, "name", kAttack);
  EXPECT_NE(seen(run, "train " + name, 2).find(kShown + ": No such file or directory"), std::string::npos);
  EXPECT_NE(seen(run, "train run.toml --run.name2=" + name, 2).find(kShown), std::string::npos);
  EXPECT_NE(seen(run, "frobnicate" + name, 2).find(kShown), std::string::npos);
  EXPECT_NE(seen(run, "data prepare --output c --input " + name, 76).find(kShown), std::string::npos);
  EXPECT_NE(seen(run, "train \"$(printf 'a\\nb')\"", 2).find("a\\nb: No such file"), std::string::npos);
  // A pipe gets the bytes.
  EXPECT_NE(run.run("train " + name).err.find(kAttack + ": No such file"), std::string::npos);
}

TEST(TerminalText, NamesInFiles) {
  const TinyRun run;
  std::filesystem::create_directories(run / "hf");
  write_text(run / "hf/config.json", Json({{"model_type", kAttack}}).dump());
  EXPECT_NE(seen(run, "train run.toml --model.init_from=hf", 76).find(kShown), std::string::npos);
}

TEST(TerminalText, TheNameOfARun) {
  const TinyRun run;
  const std::string name = in_file(run, "name", Json(kAttack).dump());
  const std::string options = "train run.toml --training.steps=2 --run.name=" + name;
  EXPECT_NE(seen(run, options, 0).find(kShown + ": "), std::string::npos);
  EXPECT_NE(seen(run, "report out", 0).find(kShown), std::string::npos);
  EXPECT_NE(run.run("report out").out.find(kAttack), std::string::npos);
  EXPECT_NE(seen(run, "launch -n 1 -- train run.toml --dry-run --run.name=" + name, 0).find(kShown + ": "), std::string::npos);
}

// The prompt is printed first; a character may come in pieces.
TEST(TerminalText, GeneratedText) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  const std::string prompt = in_file(run, "prompt", kAttack + " sch\u00F6n \u65E5\u672C");
  const std::string arguments = "generate --model out --max-tokens 1 --prompt " + prompt;
  EXPECT_NE(seen(run, arguments, 0).find(kShown + " sch\u00F6n \u65E5\u672C"), std::string::npos);
  EXPECT_EQ(run.run(arguments).out.rfind(kAttack + " sch\u00F6n \u65E5\u672C", 0), 0u);
}

// The program's own colours are no text.
TEST(TerminalText, TokensThatAreTrainedOnAreGreen) {
  const TinyRun run;
  {
    data::CorpusWriter writer(run / "chats", data::ByteTokenizer(), {.loss_mask = data::CorpusWriter::LossMask::written});
    writer.append(std::vector<std::int32_t>{'a', '\x1b', 'b', 'c'}, std::vector<std::uint8_t>{0, 0, 1, 1});
    writer.end_document();
    writer.finish();
  }
  TerminalProgram program("data inspect chats --tokens", run.path(), 1000);
  EXPECT_EQ(program.wait(), 0) << program.bytes();
  EXPECT_NE(program.bytes().find("a\\x1b\x1b[32mbc\x1b[0m"), std::string::npos) << program.bytes();
  EXPECT_NE(run.run("data inspect chats --tokens").out.find("⟦bc⟧"), std::string::npos);
}

// A run's folder stands for its newest checkpoint.
TEST(ModelAt, TheFolderOfARunIsItsNewestCheckpoint) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=4 --checkpoint.interval=2").code, 0);
  const std::string prompt = " --prompt 'the ' --temperature 0 --max-tokens 8";
  EXPECT_EQ(run.run("generate --model out" + prompt).out, run.run("generate --model out/checkpoints/step-00000004" + prompt).out);
  const ProgramResult whole = run.run("eval run.toml --checkpoint out --json");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(json_of(whole.out)["step"], 4);
  EXPECT_EQ(whole.out, run.run("eval run.toml --checkpoint out/checkpoints/step-00000004 --json").out);
  EXPECT_EQ(run.run("convert export --checkpoint out --output exported").code, 0);
  std::filesystem::remove_all(run / "out/checkpoints");
  EXPECT_EQ(run.run("generate --model out" + prompt).code, 0);  // its model
  HostTensor tokens(DType::i32, {1, 8});
  for (int i = 0; i < 8; ++i) tokens.view().as<std::int32_t>()[i] = 'a' + i;
  checkpoint::write_safetensors(run / "tokens", {{"tokens", tokens.view()}});
  for (const std::string model : {"out", "out/model"}) {
    const ProgramResult probe = run.run("probe --model " + model + " --tokens tokens --recipe bf16 --output " + model + ".probe");
    EXPECT_EQ(probe.code, 0) << probe.err;
  }
  EXPECT_EQ(read_file(run / "out.probe"), read_file(run / "out/model.probe"));
  std::filesystem::remove_all(run / "out/model");
  EXPECT_TRUE(refused(run.run("probe --model out --tokens tokens --recipe bf16 --output probe"), 76, "out: this run has no model yet; "
                      "`octet convert export --checkpoint out` writes one from its newest checkpoint"));
  EXPECT_TRUE(refused(run.run("generate --model out" + prompt), 76, "out: this run has no checkpoint and no model yet"));
}

}  // namespace
}  // namespace octet::testing
