// Kills runs again and again, and compares their outcome with that of an uninterrupted run.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "octet/base/rng.h"
#include "support/tiny_run.h"

namespace octet::testing {

// Runs run.toml with `options`, kills the run up to `kills` times and starts it again with the same command. The first kill comes
// while the run starts, each later one within a few steps after the start. Returns how often the run was killed.
inline int train_with_kills(const TinyRun& run, const std::string& options, int kills, std::uint32_t seed) {
  const Rng rng(seed, RngStream::test);
  std::int64_t step = 0;
  int died = 0;
  for (int i = 0; i < kills; ++i) {
    Process process("train run.toml " + options, run.path());
    const auto words = rng.words(static_cast<std::uint64_t>(i));
    if (i > 0) {
      // Goes beyond the step of the previous kill, so that the run makes progress.
      step += 1 + words[0] % 6;
      if (!process.read_to_step(step)) break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(words[1] % 12'000));
    process.send(SIGKILL);
    if (process.wait().code != 128 + SIGKILL) break;
    ++died;
  }
  const ProgramResult last = run.train(options);
  EXPECT_EQ(last.code, 0) << last.err;
  return died;
}

// Expects the outcome of an uninterrupted run. `options` apply to both runs.
inline void expect_kills_to_change_nothing(const std::string& options, int kills, std::uint32_t seed) {
  const TinyRun run;
  const std::string all = options + " --training.steps=60 --checkpoint.interval=4 --metrics.tensorboard=false ";
  const ProgramResult reference = run.train(all + "--run.output_dir=reference");
  ASSERT_EQ(reference.code, 0) << reference.err;
  EXPECT_GE(train_with_kills(run, all, kills, seed), (kills + 1) / 2) << "too few kills met a living run";
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
}

}  // namespace octet::testing
