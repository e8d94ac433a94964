// After SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 or SIGINT a run saves, exits with 75 and can be resumed as if nothing had happened. A
// second SIGINT ends it at once.
#include <csignal>
#include <thread>

#include "octet/base/clock.h"
#include "octet/checkpoint/steps.h"
#include "octet/comm/socket.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Signalled : public ::testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Signalled, ARunSavesAndGoesOn) {
  const auto [name, signal] = GetParam();
  ::signal(signal, SIG_DFL);  // the tests themselves may run under nohup
  const TinyRun run;
  const std::string options = "--training.steps=60 --checkpoint.interval=0 ";  // only the signal causes a save
  ASSERT_EQ(run.train(options + "--run.output_dir=reference").code, 0);
  int stops = 0;
  for (const std::int64_t step : {1, 9, 20}) {
    Process process("train run.toml " + options, run.path());
    ASSERT_TRUE(process.read_to_step(step));
    process.send(signal);
    const ProgramResult result = process.wait();
    ASSERT_EQ(result.code, 75) << result.err;
    const std::string last_line = result.err.substr(result.err.rfind('\n', result.err.size() - 2) + 1);
    EXPECT_EQ(last_line.rfind(std::string(name) + ": saved step ", 0), 0u) << result.err;
    EXPECT_NE(last_line.find(" of 60 in out/checkpoints; the same command continues from there\n"), std::string::npos)
        << result.err;
    const auto saved = checkpoint::find_checkpoints(run / "out/checkpoints");
    ASSERT_FALSE(saved.empty());
    EXPECT_GE(saved.front().step, step);
    EXPECT_EQ(metrics_of(run / "out").rbegin()->first, saved.front().step);
    EXPECT_FALSE(std::filesystem::exists(run / "out/model"));
    ++stops;
  }
  EXPECT_EQ(stops, 3);
  const ProgramResult end = run.train(options);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_NE(end.err.find("resuming after step "), std::string::npos) << end.err;
  // The signals made checkpoints at other steps, but the last checkpoint and everything else must be equal.
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
}

INSTANTIATE_TEST_SUITE_P(Signals, Signalled,
                         ::testing::Values(std::pair("SIGTERM", SIGTERM), std::pair("SIGINT", SIGINT),
                                           std::pair("SIGHUP", SIGHUP), std::pair("SIGUSR1", SIGUSR1)),
                         [](const auto& param) { return param.param.first; });

TEST(Signals, AHangUpThatWasIgnoredStaysIgnored) {
  const TinyRun run;
  Process process("train run.toml --training.steps=20", run.path(), "trap '' HUP; exec");
  ASSERT_TRUE(process.read_to_step(2));
  process.send(SIGHUP);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(metrics_of(run / "out").size(), 20u);
}

TEST(Signals, ASecondInterruptEndsTheRunAtOnce) {
  const TinyRun run;
  // Nobody reads the output, so the run blocks within a line. No step can end before the second signal.
  Process process("train run.toml --training.steps=100000 --checkpoint.interval=0 --precision.calibrate=false", run.path());
  ASSERT_TRUE(process.read_to_step(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.send_and_wait(SIGINT);
  process.send(SIGINT);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_TRUE(checkpoint::find_checkpoints(run / "out/checkpoints").empty());
  EXPECT_EQ(result.err, "SIGINT again: ended at once; the steps after the newest checkpoint are lost\n");
  EXPECT_EQ(run.run("status out --code").code, 130) << "not 137, after which a job script would start the run again";
  EXPECT_TRUE(run.run("status out").out.starts_with("out: ended with code 130\n"));
  EXPECT_EQ(run.train("--training.steps=2").code, 0) << "the lock is not in the way";
  EXPECT_EQ(run.run("status out --code").code, 0);
}

// Rank 0 waits for a rank that never comes.
TEST(Signals, BeforeTrainingThereIsNothingToSave) {
  const TinyRun run;
  for (const auto& [name, signal] : {std::pair("SIGTERM", SIGTERM), std::pair("SIGINT", SIGINT), std::pair("SIGHUP", SIGHUP)}) {
    ::signal(signal, SIG_DFL);  // the tests themselves may run under nohup
    const int port = comm::port_of(comm::listen_at("127.0.0.1", 0, "a test"));
    Process process("train run.toml", run.path(),
                    concat("exec env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port));
    const auto listens = [&] {
      try {
        comm::connect_to("127.0.0.1", port, Clock::now() + std::chrono::milliseconds(20));
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    while (!listens()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    process.send(signal);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_NE(result.err.find(concat(name, ": training has not begun, so there is nothing to save\n")), std::string::npos) << result.err;
  }
}

TEST(Signals, AnInterruptAfterATerminationIsTheFirst) {
  const TinyRun run;
  Process process("train run.toml --training.steps=100000 --checkpoint.interval=0", run.path());
  ASSERT_TRUE(process.read_to_step(2));
  process.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.send(SIGINT);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
}

}  // namespace
}  // namespace octet::testing
