// A rank that stands still under the default limits. Its peer hears nothing from it and ends before the supervisor sees a stall.
#include <csignal>
#include <string>

#include "end_to_end/supervise_fixture.h"

namespace octet::testing {
namespace {

TEST_F(Supervise, ARankThatFallsSilentIsNamed) {
  Process process(command("--checkpoint.memory_every=1 --training.steps=40 --training.global_batch_size=16 "), run_.path());
  ASSERT_TRUE(process.read_to_step(6));
  signal_process(run_.pid_of_rank(1), SIGSTOP);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u) << result.err;
  EXPECT_EQ(attempts[0]["code"], 78);
  EXPECT_TRUE(says(attempts[0]["what"], "rank 0 ended with code 78: ")) << attempts[0]["what"];
  EXPECT_TRUE(says(attempts[0]["what"], "rank 1 has been silent for 10 s")) << attempts[0]["what"];
  EXPECT_TRUE(says(result.err, " s after the last step before the restart")) << result.err;
  // Nobody notices the silence for almost 10 s: a rank says every second that it lives. No step is done in this time.
  const auto part = [&](std::size_t attempt, const char* name) { return attempts[attempt]["seconds"][name].get<double>(); };
  const double lost_s = part(0, "total") - part(0, "last_step");
  EXPECT_GT(lost_s - part(0, "stop"), 8);
  const double all_s = part(0, "total") + part(1, "waited") + part(1, "total");
  EXPECT_LE(status()["productive"].get<double>(), 1 - lost_s / all_s);
  EXPECT_TRUE(says(run_.run("status out").out, "rank 1 has been silent for 10 s")) << run_.run("status out").out;
}

}  // namespace
}  // namespace octet::testing
