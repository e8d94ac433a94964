// One of several ranks is killed again and again, on different meshes. The run must end as if nothing had happened.
#include <csignal>
#include <thread>

#include "octet/base/rng.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

struct Case {
  const char* name;
  int ranks;
  const char* settings;
};

class KilledRanksLong : public ::testing::TestWithParam<Case> {};

TEST_P(KilledRanksLong, RunsEndAsIfNothingHadHappened) {
  // There are enough steps for all tries, even if the program is some steps ahead of its reader.
  constexpr int kDeaths = 50, kTries = 60, kMostSteps = 6, kSteps = kTries * kMostSteps + 40;
  const int ranks = GetParam().ranks;
  const TinyRun run;
  const std::string command = concat("launch -n ", ranks, " -- train run.toml ", GetParam().settings,
                                     " --checkpoint.interval=4 --metrics.tensorboard=false --training.steps=", kSteps);
  ASSERT_EQ(run.run(command + " --run.output_dir=reference").code, 0);
  const Rng rng(17, RngStream::test);
  std::int64_t step = 0;
  int died = 0;
  for (int i = 0; i < kTries && died < kDeaths; ++i) {
    Process process(command, run.path());
    const auto words = rng.words(static_cast<std::uint64_t>(i));
    step += 1 + words[0] % kMostSteps;
    ASSERT_TRUE(process.read_to_step(step)) << process.wait().err;
    std::this_thread::sleep_for(std::chrono::microseconds(words[1] % 12'000));
    const pid_t victim = run.pid_of_rank(static_cast<int>(words[2] % static_cast<unsigned>(ranks)));
    if (victim <= 1) continue;
    signal_process(victim, SIGKILL);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 128 + SIGKILL) << result.err;
    ++died;
  }
  EXPECT_EQ(died, kDeaths);
  const ProgramResult last = run.run(command);
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, KilledRanksLong,
    ::testing::Values(Case{"replicas", 3, "--parallel.replicate=3 --training.global_batch_size=6"},
                      Case{"shards", 3,
                           "--parallel.shard=3 --training.global_batch_size=6 --parallel.reshard_after_forward=true "
                           "--parallel.gradients=sharded --precision.recipe=fp8_rowwise"},
                      Case{"shards_of_contexts", 4, "--parallel.shard=2 --parallel.context=2 --precision.recipe=fp8_block"},
                      Case{"shards_of_layers", 4, "--parallel.shard=2 --parallel.tensor=2 --precision.recipe=fp8_delayed"}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace octet::testing
