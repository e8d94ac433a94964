// Runs whose output is no longer read, and runs whose corpus is cut while they read it.
#include <csignal>

#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// Runs the program with stdout in a pipe whose reader has already gone. The result has the program's exit code, not the pipe's.
ProgramResult run_unread(const TinyRun& run, const std::string& command) {
  fs::remove(run / "gone");
  ProgramResult result =
      run.run(command + "; echo $? >code; } | { exec <&-; touch gone; }", "{ until [ -e gone ]; do sleep 0.01; done;");
  result.code = std::stoi(read_file(run / "code"));
  return result;
}

TEST(Console, ARunOutlivesItsReader) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=40 --run.output_dir=reference").code, 0);
  for (const std::string command : {"train run.toml --training.steps=40", "launch -n 1 -- train run.toml --training.steps=40"}) {
    SCOPED_TRACE(command);
    fs::remove_all(run / "out");
    const ProgramResult result = run_unread(run, command);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
    const std::string words = "warning: cannot write to stdout: Broken pipe; octet continues without it\n";
    const bool own_stdout = command.rfind("train", 0) == 0;  // a rank writes to the launcher, not to stdout
    EXPECT_EQ(result.err.find(words) != std::string::npos, own_stdout) << result.err;
    EXPECT_EQ(result.err.find(words), result.err.rfind(words)) << result.err;
  }
}

TEST(Console, AComparisonOutlivesItsReader) {
  const TinyRun run;
  const ProgramResult result =
      run_unread(run, "compare run.toml --training.steps=3 --recipes bf16,fp8_delayed --output compared");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(fs::exists(run / "compared/report.html"));
}

// The run goes on, and its code says how it ended: a script that starts failed runs again must not start this one.
TEST(Console, AFullDiskUnderTheLogIsToldOnce) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TinyRun run;
  for (const auto& [command, words] :
       {std::pair("", "warning: cannot write to stdout: No space left on device; octet continues without it\n"),
        std::pair("launch -n 1 -- ",
                  "octet launch: cannot write to stdout: No space left on device; the ranks continue without it\n")}) {
    fs::remove_all(run / "out");
    const ProgramResult result = run.run(concat(command, "train run.toml --training.steps=5 >/dev/full"));
    EXPECT_EQ(result.code, 0) << result.err;
    const std::size_t said = result.err.find(words);
    EXPECT_NE(said, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("cannot write to stdout", said + std::string_view(words).size()), std::string::npos) << result.err;
    EXPECT_EQ(metrics_of(run / "out").size(), 5u);
    EXPECT_TRUE(fs::exists(run / "out/model"));
  }
}

// Whoever starts the job again goes by the code.
TEST(Console, ASavedRunEndsWithItsCodeWhereNobodyReads) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const TinyRun run;
  const ProgramResult result = run.run(
      "train run.toml --training.steps=100000 >/dev/full & pid=$!; "
      "until grep -q step out/metrics.jsonl 2>/dev/null; do sleep 0.05; done; kill -TERM $pid; wait $pid");
  EXPECT_EQ(result.code, 75) << result.err;
}

// A command that prints an answer ends when its reader has gone, as other programs do.
TEST(Console, AnAnswerEndsWithItsReader) {
  const TinyRun run;
  EXPECT_EQ(run_unread(run, "train run.toml --print-config").code, 128 + SIGPIPE);
}

TEST(CutCorpus, EndsARunInWords) {
  for (const auto& [file, words] : {std::pair<std::string, std::string>{"corpus.bin", "corpus.bin: ends at byte 0 of "},
                                    {"corpus.idx", "corpus.idx: cannot be read: it has become shorter since it was opened"}}) {
    SCOPED_TRACE(file);
    const TinyRun run;
    Process process("train run.toml --training.steps=100000 --precision.calibrate=false", run.path());
    ASSERT_TRUE(process.read_to_step(2));
    fs::resize_file(run / file, 0);
    const ProgramResult result = process.wait();
    EXPECT_TRUE(refused(result, 76, words, "it has become shorter since it was opened"));
  }
}

}  // namespace
}  // namespace octet::testing
