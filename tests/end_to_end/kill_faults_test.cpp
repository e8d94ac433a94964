// Kills runs whose disk fails at random, and expects that no step and no file is lost.
#include <csignal>
#include <thread>

#include "octet/base/rng.h"
#include "octet/checkpoint/steps.h"
#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// The parameter is the number of kills.
class KilledWithFaults : public Faults, public ::testing::WithParamInterface<int> {};

// Two faults, each once, early or late: reading is tried again, and a failed save is followed by others.
std::string random_rules(const Rng& rng, std::uint64_t round) {
  const std::vector<std::string> calls = {"opendir */out/checkpoints",
                                          "readdir */out/checkpoints",
                                          "stat */out/checkpoints",
                                          "open *manifest.json",
                                          "read *manifest.json",
                                          "open *rank-00000.safetensors",
                                          "read *rank-00000.safetensors",
                                          "write *rank-00000.safetensors*",
                                          "fsync *rank-00000.safetensors*",
                                          "fsync */out/checkpoints",
                                          "rename *step-????????",
                                          "close *manifest.json*",
                                          "fsync *metrics.jsonl",
                                          "open */out/run.lock",
                                          "unlink */step-*",
                                          "rmdir */step-*"};
  const auto words = rng.words(2 * round), more = rng.words(2 * round + 1);
  return concat(calls[words[0] % calls.size()], " ", 1 + words[1] % 9, " EIO;", calls[words[2] % calls.size()], " ",
                1 + words[3] % 3, " ", more[0] % 2 == 0 ? "ESTALE" : "EIO");
}

TEST_P(KilledWithFaults, NoStepAndNoFileIsLost) {
  const int kills = GetParam();
  const TinyRun run;
  const std::string options = concat("--training.steps=", 4 * kills + 16,
                                     " --checkpoint.interval=4 --checkpoint.keep_every=40 --metrics.tensorboard=false "
                                     "--metrics.health_freq=0 --evaluation.interval=0 --checkpoint.max_failed_saves=9 ");
  ASSERT_EQ(run.train(options + "--run.output_dir=reference").code, 0);
  const auto newest = [&] {
    const auto found = checkpoint::find_checkpoints(run / "out/checkpoints");
    return found.empty() ? 0 : found.front().step;
  };
  const Rng rng(static_cast<std::uint64_t>(kills), RngStream::test);
  int died = 0, faults = 0;
  for (int i = 0; i < kills; ++i) {
    const std::int64_t before = newest();
    const std::string rules = random_rules(rng, static_cast<std::uint64_t>(i));
    SCOPED_TRACE(concat("kill ", i, ", after step ", before, ", ", rules));
    fs::remove(run / "faults.log");
    Process process("train run.toml " + options, run.path(), failing(rules));
    const auto words = rng.words(1'000'000 + static_cast<std::uint64_t>(i));
    const bool alive = process.read_to_step(before + 1 + words[0] % 6);
    if (alive) {
      std::this_thread::sleep_for(std::chrono::microseconds(words[1] % 12'000));
      process.send(SIGKILL);
    }
    const ProgramResult result = process.wait();
    if (!alive && result.code == 0) break;  // it has ended
    ASSERT_EQ(result.code, 128 + SIGKILL) << result.err;
    ++died;
    faults += fs::exists(run / "faults.log");
    const std::string resumed = concat("resuming after step ", before, " from out/checkpoints");
    EXPECT_EQ(result.err.find(resumed) != std::string::npos, before > 0) << result.err;
    EXPECT_GE(newest(), before);
    EXPECT_FALSE(fs::exists(run / "out/checkpoints/damaged"));
  }
  EXPECT_GE(died, kills / 2) << "too few kills met a living run";
  EXPECT_GE(faults, 1 + died / 20) << "too few faults happened";
  const ProgramResult last = run.train(options);
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
  EXPECT_EQ(metrics_of(run / "out").size(), metrics_of(run / "reference").size());
}

INSTANTIATE_TEST_SUITE_P(Quick, KilledWithFaults, ::testing::Values(12));
INSTANTIATE_TEST_SUITE_P(Long, KilledWithFaults, ::testing::Values(500));

}  // namespace
}  // namespace octet::testing
