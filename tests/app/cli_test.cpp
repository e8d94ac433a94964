// The command line as a user meets it.
#include <gtest/gtest.h>

#include "octet/base/json.h"
#include "support/program.h"

namespace octet {
namespace {

using octet::testing::ProgramResult;
using octet::testing::run_program;
using octet::testing::TemporaryFolder;

const std::string kModel = "[model]\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\nvocab_size = 256\n";

void expect_error(const std::string& arguments, int code, const std::string& message) {
  const ProgramResult result = run_program(arguments);
  EXPECT_EQ(result.code, code) << arguments;
  EXPECT_EQ(result.err, "octet: " + message + "\n") << arguments;
  EXPECT_EQ(result.out, "") << arguments;
}

TEST(CommandLine, AloneItExplainsItself) {
  for (const char* arguments : {"", "--help", "-h"}) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    for (const char* text : {"octet data prepare --input", "octet train configs/quickstart.toml", "doctor", "compare", "quantize"}) {
      EXPECT_NE(result.out.find(text), std::string::npos) << text;
    }
  }
  EXPECT_EQ(run_program("--version").out, "octet 0.1.0\n");
}

TEST(CommandLine, EveryCommandHasHelpWithAnExample) {
  for (const char* command : {"doctor", "data", "data prepare", "data inspect", "train", "eval", "advise", "plan", "compare", "launch", "report", "generate",
                              "probe", "quantize", "bench", "bench gemm", "bench quantize", "bench attention", "bench comm", "bench step", "convert",
                              "convert import", "convert export", "convert verify"}) {
    const ProgramResult result = run_program(std::string(command) + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_NE(result.out.find("Usage: octet " + std::string(command)), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("Example:\n  octet "), std::string::npos) << command;
  }
  for (const char* group : {"data", "bench", "convert"}) {
    const ProgramResult result = run_program(group);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("Usage: octet " + std::string(group)), std::string::npos);
  }
  EXPECT_NE(run_program("train --help").out.find("--section.key=value"), std::string::npos);
}

TEST(CommandLine, UnknownNamesSuggestTheNearest) {
  expect_error("trian", 2, "unknown command trian (did you mean train?)");
  expect_error("data inspct", 2, "data: unknown command inspct (did you mean inspect?)");
  expect_error("train --dryrun", 2, "train: unknown option --dryrun (did you mean --dry-run?)");
  expect_error("probe --modle x", 2, "probe: unknown option --modle (did you mean --model?)");
  expect_error("train a.toml b.toml", 2, "train: unexpected argument b.toml");
  expect_error("train a.toml --verbose", 2, "train: unknown option --verbose; keys of the run are --section.key=value");
  expect_error("doctor --precision.recipe=x", 2, "doctor: unknown option --precision.recipe=x");
}

TEST(CommandLine, MissingAndWrongArguments) {
  expect_error("train", 2, "train: RUN.toml is required; see `octet train --help`");
  expect_error("data prepare --input x", 2, "data prepare: --output is required; see `octet data prepare --help`");
  expect_error("train none.toml", 2, "none.toml: No such file or directory");
  const ProgramResult result = run_program("generate --model x --prompt y --max-tokens many");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--max-tokens"), std::string::npos) << result.err;
}

TEST(CommandLine, KeysOfTheRunAreOptions) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "run.toml") << kModel << "[optimizer]\nlr = 1.0\n";
  const ProgramResult result =
      run_program("train run.toml --print-config --optimizer.lr=0.5 '--run.name=a b' --precision.skip=x,y", folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* line : {"lr = 0.5 ", "name = \"a b\"", "skip = [\"x\", \"y\"]", "hidden_size = 32", "keep_latest_k = 3"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << "\n" << result.out;
  }
  std::ofstream(folder.path() / "printed.toml") << result.out;
  EXPECT_EQ(run_program("train printed.toml --print-config", folder.path()).out, result.out);

  const auto error = [&](const std::string& option) { return run_program("train run.toml " + option, folder.path()); };
  EXPECT_EQ(error("--optimizer.learning_rate=1").err,
            "octet: --optimizer.learning_rate=1: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)\n");
  EXPECT_EQ(error("--optimizer.lr").err, "octet: --optimizer.lr: must be --section.key=value\n");
  EXPECT_EQ(error("--optimizer.lr=x").err, "octet: --optimizer.lr=x: must be a number, not a string\n");
  EXPECT_EQ(error("--optimizer.lr=x").code, 2);
}

TEST(CommandLine, MistakesInTheFileNameFileAndLine) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "run.toml") << "[optimizer]\nlearning_rate = 1.0\n";
  const ProgramResult result = run_program("train run.toml", folder.path());
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "octet: run.toml:2: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)\n");
}

TEST(Data, PreparesAndInspects) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "a.txt") << "Hello, corpus.";
  std::ofstream(folder.path() / "b.jsonl") << "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const ProgramResult prepared = run_program("data prepare --input a.txt b.jsonl --output c --json", folder.path());
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_EQ(prepared.err, "");
  EXPECT_EQ(json_of(prepared.out)["documents"], 3);
  EXPECT_EQ(json_of(prepared.out)["tokens"], 20);
  const ProgramResult inspected = run_program("data inspect c --json", folder.path());
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_EQ(json_of(inspected.out)["documents"], 3);
  EXPECT_NE(run_program("data inspect c", folder.path()).out.find("Hello, corpus."), std::string::npos);

  EXPECT_EQ(run_program("data prepare --input none --output d", folder.path()).code, 76);
  EXPECT_EQ(run_program("data inspect none", folder.path()).code, 76);
  std::filesystem::resize_file(folder.path() / "c.idx", 30);
  const ProgramResult broken = run_program("data inspect c", folder.path());
  EXPECT_EQ(broken.code, 76);
  EXPECT_NE(broken.err.find("c.idx"), std::string::npos);
}

TEST(Report, DrawsOneRunAndSeveral) {
  const TemporaryFolder folder;
  for (const char* name : {"fp8_block", "bf16"}) {
    std::filesystem::create_directories(folder.path() / "runs" / name);
    std::ofstream file(folder.path() / "runs" / name / "metrics.jsonl");
    for (int step = 1; step <= 20; ++step) {
      file << R"({"step":)" << step << R"(,"loss":)" << 5.0 / step << R"(,"tokens_per_s_per_gpu":1000})" << "\n";
    }
  }
  const ProgramResult several = run_program("report runs", folder.path());
  EXPECT_EQ(several.code, 0) << several.err;
  EXPECT_NE(several.out.find("report: runs/report.html"), std::string::npos) << several.out;
  EXPECT_LT(several.out.find("bf16"), several.out.find("fp8_block")) << several.out;  // the baseline first
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "runs" / "report.html"));
  EXPECT_EQ(json_of(run_program("report runs --json", folder.path()).out)["rows"].size(), 2u);
  EXPECT_EQ(run_program("report runs/bf16 --output one", folder.path()).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "one" / "report.html"));
  EXPECT_EQ(run_program("report none", folder.path()).err, "octet: none: not a folder\n");
  std::filesystem::create_directories(folder.path() / "empty");
  const ProgramResult empty = run_program("report empty", folder.path());
  EXPECT_EQ(empty.code, 76);
  EXPECT_EQ(empty.err, "octet: empty: no metrics.jsonl here or in a folder below\n");
}

// Output that cannot be written is an error, not silence.
TEST(CommandLine, AFullStdoutIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProgramResult result = run_program("--help >/dev/full");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "octet: cannot write to stdout\n");
}

}  // namespace
}  // namespace octet
