// Tests which parts a restart with default settings has after a rank is killed. docs/measurements/tests.md has the
// seconds, which depend on the machine.
#include <csignal>
#include <string>

#include "end_to_end/supervise_fixture.h"

namespace octet::testing {
namespace {

// One restart from memory, at once: no gate on CPUs, no back-off, and nobody waits until the killed rank's peer falls silent.
TEST_F(Supervise, AKilledRankCostsOneRestartAtOnce) {
  Process process(command("--checkpoint.interval=500 --training.steps=4000 --training.global_batch_size=16 "), run_.path());
  ASSERT_TRUE(process.read_to_step(20));
  kill_rank(1);
  const auto begin = std::chrono::steady_clock::now();
  PendingResult end(process);
  ASSERT_TRUE(node_says("attempt 2 trains from step "));
  const std::chrono::duration<double> recovery = std::chrono::steady_clock::now() - begin;
  RecordProperty("seconds_to_next_step", std::to_string(recovery.count()));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  ASSERT_EQ(result.code, 75) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u) << result.err;
  EXPECT_EQ(attempts[0]["code"], 128 + SIGKILL);
  EXPECT_EQ(attempts[0]["next"], "restarts");
  EXPECT_EQ(attempts[1]["from"], "memory");
  EXPECT_GE(attempts[1]["from_step"], 2);
  // The first back-off is 5 s, and a peer is given up after 10 s. The other rank has 2 s for its last words.
  EXPECT_LT(attempts[1]["seconds"]["waited"], 5.0) << attempts[1];
  EXPECT_LT(attempts[0]["seconds"]["stop"], 10.0) << attempts[0];
  EXPECT_FALSE(says(read_file(run_ / "out/logs/node-000.log"), "gate"));
}

}  // namespace
}  // namespace octet::testing
