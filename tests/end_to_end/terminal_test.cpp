// What a terminal shows during a run and after it. Files and pipes must get none of it.
#include "support/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <regex>

#include "support/tiny_run.h"

namespace octet::testing {
namespace {

const std::string kBar = "━";

bool is_step(const std::string& row) { return row.rfind("step ", 0) == 0; }

std::vector<std::string> steps_of(const Screen& screen) {
  std::vector<std::string> steps;
  for (const std::string& row : screen.rows()) {
    if (is_step(row)) steps.push_back(row.substr(0, row.find("  ")));
  }
  return steps;
}

std::vector<std::string> steps_to(int last) {
  std::vector<std::string> steps;
  for (int step = 1; step <= last; ++step) steps.push_back("step " + std::to_string(step) + "/" + std::to_string(last));
  return steps;
}

// Checks that a live line was drawn and removed without a trace.
void expect_clean(const Screen& screen) {
  EXPECT_TRUE(screen.unknown().empty()) << ::testing::PrintToString(screen.unknown());
  EXPECT_FALSE(screen.erased().empty()) << "no live line was drawn";
  const std::vector<std::string> rows = screen.rows();
  EXPECT_EQ(rows.back(), "");
  for (const std::string& row : rows) EXPECT_EQ(row.find(kBar), std::string::npos) << row;
}

TEST(Terminal, StepsScrollAboveALiveLineThatGoesInTheEnd) {
  const TinyRun run;
  TerminalProgram program("train run.toml", run.path(), 130);
  ASSERT_EQ(program.wait(), 0) << program.bytes();
  const Screen& screen = program.screen();
  expect_clean(screen);
  EXPECT_EQ(steps_of(screen), steps_to(24));
  static const std::regex kLive(
      R"((━|╸|─)+ +\d+%  step \d+/24  loss \d+\.\d{3} (▁|▂|▃|▄|▅|▆|▇|█)+  [\d,]+ tok/s/process  eta \S+)");
  for (const std::string& row : screen.erased()) EXPECT_TRUE(std::regex_match(row, kLive)) << row;
  const std::vector<std::string> rows = screen.rows();
  EXPECT_TRUE(
      std::regex_match(rows.at(rows.size() - 2),
                       std::regex(R"(\d\d:\d\d:\d\dZ done: the model is in out/model, `octet report out` draws the curves)")));
}

TEST(Terminal, NothingOfARunWrapsOnANarrowOne) {
  for (const int columns : {60, 30, 12}) {
    const TinyRun run;
    TerminalProgram program("train run.toml --training.steps=12", run.path(), columns);
    ASSERT_EQ(program.wait(), 0) << program.bytes();
    const Screen& screen = program.screen();
    expect_clean(screen);
    EXPECT_EQ(steps_of(screen).size(), 12u) << columns;
    const std::vector<std::string> rows = screen.rows();
    for (const std::size_t row : screen.wrapped()) {
      EXPECT_FALSE(is_step(rows.at(row - 1))) << columns << ": " << rows[row - 1] << rows[row];
    }
  }
}

TEST(Terminal, WithoutUtf8TheLineIsAscii) {
  const TinyRun run;
  TerminalProgram program("train run.toml", run.path(), 100, "TERM=xterm LANG=C");
  ASSERT_EQ(program.wait(), 0) << program.bytes();
  expect_clean(program.screen());
  EXPECT_EQ(program.screen().erased().front().rfind("[", 0), 0u);
  for (const char c : program.bytes()) ASSERT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(Terminal, ALogLineGoesAbove) {
  const TinyRun run;
  TerminalProgram program("train run.toml --training.steps=100000 --checkpoint.interval=0", run.path(), 130);
  ASSERT_TRUE(program.read_to("step 20/"));
  program.send(SIGTERM);
  ASSERT_EQ(program.wait(), 75) << program.bytes();
  expect_clean(program.screen());
  const std::vector<std::string> rows = program.screen().rows();
  EXPECT_EQ(rows.at(rows.size() - 2).find("Z SIGTERM: saved step "), 8u) << rows.at(rows.size() - 2);
}

TEST(Terminal, ACrashLeavesNoHalfLine) {
  const TinyRun run;
  for (const int signal : {SIGABRT, SIGQUIT}) {
    TerminalProgram program(
        "train run.toml --training.steps=100000 --checkpoint.interval=0 --checkpoint.resume=none --run.set_aside=true",
        run.path(), 130);
    ASSERT_TRUE(program.read_to("step 20/"));
    program.send(signal);
    ASSERT_EQ(program.wait(), 128 + signal);
    const std::vector<std::string> rows = program.screen().rows();
    EXPECT_EQ(rows.back().find(kBar), std::string::npos) << rows.back();
  }
}

// Ctrl-S blocks the run in the write that draws the live line. Removing the line must not block as well.
TEST(Terminal, ASecondInterruptEndsARunWhoseTerminalIsHeld) {
  const TinyRun run;
  TerminalProgram program(
      "train run.toml --training.steps=100000 --checkpoint.interval=0 --metrics.log_freq=100000 "
      "--metrics.health_freq=0 --evaluation.interval=0",
      run.path(), 130);
  ASSERT_TRUE(program.read_to("iB  eta"));
  program.type("\x13");
  ::usleep(300'000);  // the line is drawn ten times a second, so one drawing blocks by now
  program.send(SIGINT);
  program.send(SIGINT);
  for (int tries = 0; tries < 1000 && !program.ended(); ++tries) ::usleep(10'000);
  ASSERT_TRUE(program.ended());
  EXPECT_EQ(program.wait(), 130);
}

TEST(Terminal, ARefusalStandsInALineOfItsOwn) {
  const TinyRun run;
  TerminalProgram program("train run.toml --optimizer.lr=1e30 --anomaly.max_rollbacks=0", run.path(), 130);
  ASSERT_EQ(program.wait(), 77) << program.bytes();
  expect_clean(program.screen());
  const std::vector<std::string> rows = program.screen().rows();
  const auto refusal =
      std::find_if(rows.begin(), rows.end(), [](const std::string& row) { return row.rfind("octet: step ", 0) == 0; });
  EXPECT_NE(refusal, rows.end()) << program.bytes();
}

TEST(Terminal, AComparisonHasOneLineForEachRun) {
  const TinyRun run;
  TerminalProgram program("compare run.toml --recipes bf16,fp8_block --training.steps=12", run.path(), 130);
  ASSERT_EQ(program.wait(), 0) << program.bytes();
  expect_clean(program.screen());
  std::vector<std::string> ends;
  for (const std::string& row : program.screen().rows()) {
    if (row.find("step 12/12") != std::string::npos) ends.push_back(row.substr(0, row.find(' ')));
  }
  EXPECT_EQ(ends, (std::vector<std::string>{"bf16", "fp8_block", "bf16-repeat"}));
}

// Trained tokens are green where a terminal shows colours and its user wants them. Elsewhere they are marked.
TEST(Terminal, ColoursFollowTheTerminalAndItsUser) {
  const TinyRun run;
  for (const auto& [environment, coloured] :
       {std::pair("TERM=xterm", true), std::pair("TERM=xterm NO_COLOR=", true), std::pair("TERM=xterm NO_COLOR=1", false),
        std::pair("TERM=dumb", false), std::pair("TERM=", false)}) {
    TerminalProgram program("data inspect corpus --tokens", run.path(), 100, environment);
    EXPECT_EQ(program.wait(), 0);
    EXPECT_EQ(program.bytes().find("\x1b[") != std::string::npos, coloured) << environment;
  }
}

// A pipe, and a terminal that cannot erase, get the promised lines and nothing else.
TEST(Terminal, ElsewhereThereAreLinesAlone) {
  static const std::regex kLine(
      R"(step \d+/24  loss \d+\.\d{3}  grad [\d.]+  lr \d\.\de-\d\d  [\d,]+ tok/s/process  [\d.e-]+ TFLOPS  [\d.]+ [KMG]iB  eta \S+(  eval \d+\.\d{3})?)");
  const TinyRun run;
  const ProgramResult piped = run.train();
  ASSERT_EQ(piped.code, 0) << piped.err;
  TerminalProgram dumb("train run.toml --checkpoint.resume=none --run.set_aside=true", run.path(), 200,
                       "TERM=dumb LC_ALL=C.UTF-8");
  ASSERT_EQ(dumb.wait(), 0);
  std::string printed = dumb.bytes();
  printed.erase(std::remove(printed.begin(), printed.end(), '\r'), printed.end());  // the terminal itself adds them
  for (const std::string& output : {piped.out, printed}) {
    std::istringstream lines(output.substr(output.find("\nstep ") + 1));
    int steps = 0;
    for (std::string line; std::getline(lines, line) && is_step(line); ++steps)
      EXPECT_TRUE(std::regex_match(line, kLine)) << line;
    EXPECT_EQ(steps, 24);
    EXPECT_EQ(output.find_first_of("\x1b\r"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::testing
