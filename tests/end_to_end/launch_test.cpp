// `octet launch` with Octet's own commands as ranks.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Returns a child of a process, or -1. /proc/PID/stat is "PID (name) state parent ...".
pid_t child_of(pid_t parent) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string stat;
    std::getline(std::ifstream(entry.path() / "stat"), stat);
    const std::size_t name_end = stat.rfind(") ");
    if (name_end != std::string::npos && std::stol(stat.substr(name_end + 4)) == parent) return std::stoi(stat);
  }
  return -1;
}

// kTrainForLong launches a run that goes on until it is stopped. With kSayPid, its first line of output is the launcher's pid.
const std::string kTrainForLong = "launch -n 1 -- train run.toml --training.steps=100000 --checkpoint.interval=0";
const std::string kSayPid = "echo $$; exec";

TEST(Launch, RankZeroSoundsAsIfAloneTheOthersSayTheirNumber) {
  const ProgramResult version = run_program("launch -n 3 -- --version");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.err, "");
  const std::string line = run_program("--version").out.substr(0, run_program("--version").out.find('\n'));
  EXPECT_EQ(sorted_lines(version.out), std::vector<std::string>({"[1] " + line, "[2] " + line, line}));

  const ProgramResult doctor = run_program("launch -n 2 -- doctor --json");
  EXPECT_EQ(doctor.code, 0) << doctor.err;
  const std::vector<std::string> lines = sorted_lines(doctor.out);
  ASSERT_EQ(lines.size(), 2u) << doctor.out;
  ASSERT_EQ(lines[0].substr(0, 5), "[1] {") << doctor.out;
  EXPECT_TRUE(json_of(lines[0].substr(4))["fp8_self_test"]["passed"]);
  EXPECT_TRUE(json_of(lines[1])["fp8_self_test"]["passed"]);
}

TEST(Launch, EndsWithTheCodeOfTheRankThatFailed) {
  const ProgramResult result = run_program("launch -n 1 -- eval missing.toml --checkpoint x");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, run_program("eval missing.toml --checkpoint x").err) << "its sentence says all";
  const ProgramResult several = run_program("launch -n 3 -- eval missing.toml --checkpoint x");
  EXPECT_EQ(several.code, 2);
  EXPECT_EQ(std::count(several.err.begin(), several.err.end(), '\n'), 1) << several.err;
  const TinyRun run;
  write_text(run / "corpus.bin", "");  // shorter than its index says
  const ProgramResult damaged = run.run("launch -n 1 -- train run.toml");
  EXPECT_EQ(damaged.code, 76) << damaged.err;
  EXPECT_NE(damaged.err.find("octet launch: rank 0 ended with code 76\n"), std::string::npos) << damaged.err;
}

// Mistakes of the configuration are said before ranks start, each of which would say them again.
TEST(Launch, SaysOnceWhatEachRankWouldSay) {
  const TinyRun run;
  EXPECT_TRUE(refused(run.run("launch -n 3 -- train missing.toml"), 2, "octet: missing.toml: "));
  EXPECT_TRUE(refused(run.run("launch -n 3 -- train run.toml --trainin.steps=3"), 2, "octet: --trainin.steps=3: "));
  EXPECT_TRUE(refused(run.run("launch -n 3 -- train run.toml"), 2, " data-parallel ranks: give --training.global_batch_size="));
  const std::string train = "launch -n 2 -- train run.toml --training.micro_batch_size=1 ";
  EXPECT_TRUE(
      refused(run.run(train + "--parallel.expert=2"), 2, "octet: run.toml: parallel.expert = 2: the model has no experts"));
  EXPECT_TRUE(refused(run.run(train + "--parallel.context=2 --precision.recipe=fp8_delayed --precision.attention=fp8"), 2,
                      "octet: run.toml: precision.attention = \"fp8\" with parallel.context = 2"));
  EXPECT_TRUE(refused(run.run(train + "--model.tie_word_embeddings=true --parallel.pipeline=2"), 2,
                      "octet: run.toml: parallel.pipeline = 2: the model's head is tied to its embedding"));
}

// A supervisor does not read the model, so only its ranks know that the head is tied.
TEST(Launch, PrintsOnceWhatSeveralRanksSay) {
  const TinyRun run;
  const ProgramResult result = run.run(
      "launch -n 2 --supervise -- train run.toml --model.tie_word_embeddings=true --parallel.pipeline=2 "
      "--training.micro_batch_size=1");
  EXPECT_EQ(result.code, 2);
  const std::string sentence = "octet: run.toml: parallel.pipeline = 2: the model's head is tied to its embedding";
  const std::size_t first = result.err.find(sentence);
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(sentence, first + 1), std::string::npos) << result.err;
}

TEST(Launch, RefusesWhatItCannotRun) {
  for (const char* ranks : {"0", "-3", "1025"}) {
    EXPECT_TRUE(refused(run_program(std::string("launch -n ") + ranks + " -- doctor"), 2, "octet launch: -n: `", ranks, "must be at least 1 and at most 1024"));
  }
  EXPECT_TRUE(refused(run_program("launch -n some -- doctor"), 2, "-n"));
  EXPECT_TRUE(refused(run_program("launch -- doctor"), 2, "-n is required"));
  for (const char* nothing : {"launch -n 2", "launch -n 2 --"})
    EXPECT_TRUE(refused(run_program(nothing), 2, "nothing to run", "`--`"));
  EXPECT_TRUE(refused(run_program("launch -n 2 -- launch -n 2 -- doctor"), 2, "cannot start `octet launch`"));
  EXPECT_TRUE(refused(run_program("launch -n 2 -- trian run.toml"), 2, "octet: unknown command `trian` (did you mean train?)"));
  for (const std::string wrong : {"", "/bin/true"})
    EXPECT_TRUE(refused(run_program("launch -n 2 -- '" + wrong + "'"), 2, "octet: unknown command `" + wrong + "`"));
  EXPECT_TRUE(refused(run_program("launch -n 2 train run.toml"), 2, "unexpected argument `train`", "after `--`"));
  for (const char* grace : {"-1", "nan", "1e9"}) {
    EXPECT_TRUE(refused(run_program(std::string("launch -n 1 --grace ") + grace + " -- doctor"), 2, "--grace: `"));
  }
}

TEST(Launch, AFullStdoutIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProgramResult result = run_program("launch -n 2 -- --version >/dev/full");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err,
            "octet launch: cannot write to stdout: No space left on device; the ranks continue without it\n"
            "octet: cannot write to stdout\n");
}

TEST(Launch, ATerminatedRunSaves) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    ::signal(signal, SIG_DFL);  // the tests themselves may run under nohup
    const TinyRun run;
    Process process(kTrainForLong, run.path());
    ASSERT_TRUE(process.read_to_step(5));
    process.send(signal);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_NE(result.err.find(": saved step "), std::string::npos) << result.err;
    const std::string last = "octet launch: the run was asked to stop (code 75)\n";
    ASSERT_GE(result.err.size(), last.size());
    EXPECT_EQ(result.err.substr(result.err.size() - last.size()), last);
    EXPECT_FALSE(checkpoint::find_checkpoints(run / "out/checkpoints").empty());
  }
}

TEST(Launch, ASecondInterruptEndsItAtOnceAndLeavesNothing) {
  const TinyRun run;
  std::filesystem::create_directories(run / "tmp");
  Process process(kTrainForLong, run.path(), "exec env TMPDIR=tmp");
  ASSERT_TRUE(process.read_to_step(2));
  const pid_t rank = child_of(process.pid());
  ASSERT_GT(rank, 1);
  signal_process(rank, SIGSTOP);  // so that the run does not end between the two interrupts
  process.send_and_wait(SIGINT);
  process.send(SIGINT);
  EXPECT_EQ(process.wait().code, 130);
  EXPECT_TRUE(std::filesystem::is_empty(run / "tmp"));
}

TEST(Launch, GivesTorchrunsVariables) {
  const TinyRun run;
  Process process(kTrainForLong, run.path(), kSayPid);
  const pid_t launcher = std::stoi(process.read_line().value_or("-1"));
  ASSERT_TRUE(process.read_to_step(1));
  std::stringstream environment;  // reads until the end, because files in /proc have size 0
  environment << '\0' << std::ifstream("/proc/" + std::to_string(child_of(launcher)) + "/environ").rdbuf();
  const std::string text = environment.str();
  for (const char* variable : {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1"}) {
    EXPECT_NE(text.find(std::string(1, '\0') + variable + std::string(1, '\0')), std::string::npos) << variable;
  }
  const std::size_t port = text.find("MASTER_PORT=");
  ASSERT_NE(port, std::string::npos);
  EXPECT_GT(std::atoi(text.c_str() + port + 12), 0);
}

TEST(Launch, SaysWhichSignalKilledARank) {
  const TinyRun run;
  Process process(kTrainForLong, run.path(), kSayPid);
  const pid_t launcher = std::stoi(process.read_line().value_or("-1"));
  ASSERT_TRUE(process.read_to_step(1));
  const pid_t rank = child_of(launcher);
  ASSERT_GT(rank, 1);
  signal_process(rank, SIGKILL);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_NE(result.err.find("octet launch: rank 0 was killed by signal 9 (SIGKILL)\n"), std::string::npos) << result.err;
}

TEST(Launch, AKilledLauncherLeavesNoRank) {
  const TinyRun run;
  // The rank inherits descriptor 9. The reader sees the end of the FIFO once no process holds it open.
  ASSERT_EQ(::mkfifo((run / "witness").c_str(), 0600), 0);
  const int witness = ::open((run / "witness").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(witness, 0);
  Process process(kTrainForLong, run.path(), "exec 9>witness; exec");
  ASSERT_TRUE(process.read_to_step(2));
  pollfd end = {.fd = witness, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&end, 1, 0), 0);
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().code, 128 + SIGKILL);
  EXPECT_EQ(::poll(&end, 1, 20'000), 1);
  EXPECT_TRUE(end.revents & POLLHUP);
  ::close(witness);
}

}  // namespace
}  // namespace octet::testing
