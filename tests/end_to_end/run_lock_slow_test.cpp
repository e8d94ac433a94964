// The lock of a run in another container: its process id says nothing here, so its counter decides.
#include <csignal>
#include <thread>

#include "octet/base/clock.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

TEST(RunLockElsewhere, ALiveHolderIsRefusedAndADeadOneTakenOver) {
  const std::string container = "exec unshare --pid --fork --kill-child --mount-proc";
  if (std::system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0) GTEST_SKIP() << "no permission to make a namespace";
  const TinyRun run;
  {
    Process first("train run.toml --training.steps=100000 --checkpoint.interval=4", run.path(), container);
    ASSERT_TRUE(first.read_to_step(3));
    // Its own counter grows while this process reads on.
    std::thread reader([&] {
      while (first.read_line()) {
      }
    });
    const auto start = Clock::now();
    const ProgramResult second = run.train();
    EXPECT_LT(seconds_since(start), 20);
    first.send(SIGKILL);
    reader.join();
    first.wait();
    EXPECT_EQ(second.code, 2) << second.err;
    EXPECT_NE(second.err.find("out: another run writes here: process "), std::string::npos) << second.err;
    EXPECT_NE(second.err.find("and its counter in run.lock grows"), std::string::npos) << second.err;
  }
  const auto start = Clock::now();
  const ProgramResult next = run.train("--resume none --run.set_aside=true");
  EXPECT_EQ(next.code, 0) << next.err;
  EXPECT_NE(next.err.find("whose counter stood still for 30 s"), std::string::npos) << next.err;
  EXPECT_GE(seconds_since(start), 30);
}

}  // namespace
}  // namespace octet::testing
