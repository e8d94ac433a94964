// A rank that computes wrong bits: `octet train` finds it by a micro-batch that all ranks compute, names it, and a supervised run
// ends as if it had not happened.
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <string_view>

#include "octet/kernels/rope/rope.h"
#include "support/rank_memory.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Products : public ::testing::Test {
 protected:
  // Runs ranks with data of their own and then changes a sign in the table of rotations of rank 1, in running memory. No step
  // makes this table anew, and no comparison of state covers it: each product of attention is wrong until the rank ends. Returns
  // the end of the run, which is supervised.
  ProgramResult run_with_wrong_products(int ranks, const std::string& more) {
    const std::string options = concat(
        "--metrics.tensorboard=false --training.global_batch_size=24 --training.micro_batch_size=2 --training.steps=30 "
        "--checkpoint.interval=2 --checkpoint.async=false --checkpoint.keep_latest_k=0 --health.sdc_every=1 ",
        more, " ");
    const std::string launch = concat("launch -n ", ranks, " ");
    EXPECT_EQ(run_.run(launch + "-- train run.toml --run.output_dir=reference " + options).code, 0);
    Process process(launch + "--supervise -- train run.toml " + options, run_.path());
    EXPECT_TRUE(process.read_to_step(5));
    PendingResult end(process);
    {
      const std::vector<float> table = kernels::rope_table(kHeadDim, 10000.0, std::nullopt, kSequence);
      const std::string_view bytes(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(float));
      Stopped rank(run_.pid_of_rank(1));
      // The table itself, and not what is left of it in memory that was given back.
      flips_ = rank.can_write() ? rank.flip(bytes.substr(3 + 3 * sizeof(float) * kHeadDim, 512), 7) : 0;
    }
    return end.get();
  }
  Json attempts() const { return json_of(run_.run("status out --json").out)["attempts"]; }
  std::string log_of(int rank) const { return read_file(run_ / concat("out/logs/rank-0000", rank, ".log")); }
  void expect_equal_outcome() const { EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference"))); }

  static constexpr std::int64_t kHeadDim = 8, kSequence = 32;
  TinyRun run_;
  int flips_ = 0;
};

TEST_F(Products, TwoOfThreeBlameTheThird) {
  const ProgramResult result = run_with_wrong_products(3, "");
  ASSERT_GT(flips_, 0);
  EXPECT_EQ(result.code, 0) << result.err;
  expect_equal_outcome();
  const Json all = attempts();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["code"], 79);
  EXPECT_TRUE(says(all[0]["what"], "rank 1 ended with code 79: step "));
  EXPECT_EQ(all[1]["from_step"].get<int>() % 2, 0) << "a checkpoint";
  for (int rank = 0; rank < 3; ++rank) {
    const std::string log = log_of(rank);
    EXPECT_TRUE(says(log, ": rank 1 (")) << log;
    EXPECT_TRUE(says(log, " computes other bits of the output of layer 0 than rank 0 (")) << log;
    EXPECT_TRUE(says(log, " from the same micro-batch, and the same wrong ones again. Nothing of this state is saved.")) << log;
  }
}

TEST_F(Products, OneOfTwoIsNotBlamed) {
  const ProgramResult result = run_with_wrong_products(2, "--parallel.shard=1 --parallel.replicate=2");
  ASSERT_GT(flips_, 0);
  EXPECT_EQ(result.code, 0) << result.err;
  expect_equal_outcome();
  const Json all = attempts();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["code"], 78);
  EXPECT_TRUE(says(log_of(1),
                   " compute different bits of the output of layer 0 from the same micro-batch, twice; no majority "
                   "tells which of them is wrong"))
      << log_of(1);
}

// The tensor axis spreads a wrong product, so a majority names two ranks and blames none.
TEST_F(Products, RanksOfOneMicroBatchAreNamedTogether) {
  const ProgramResult result = run_with_wrong_products(6, "--parallel.shard=1 --parallel.replicate=3 --parallel.tensor=2");
  ASSERT_GT(flips_, 0);
  EXPECT_EQ(result.code, 0) << result.err;
  const Json all = attempts();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["code"], 78);
  EXPECT_TRUE(says(log_of(1), "; the fault may also lie on a rank that computes other parts of the same micro-batches"))
      << log_of(1);
}

// Healthy ranks find nothing, and the run has the bits of one without checks.
TEST_F(Products, CheckingChangesNothing) {
  for (const char* run : {"out --health.sdc_every=2", "reference --health.sdc_every=0"}) {
    const ProgramResult result =
        run_.run(concat("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=", run));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const auto without_memory = [](std::map<std::string, std::string> outcome) {
    for (auto& [name, text] : outcome) text = std::regex_replace(text, std::regex(R"("memory_peak_gib":[^,]*,)"), "");
    return outcome;
  };
  EXPECT_TRUE(same_outcome(without_memory(outcome_of(run_ / "out")), without_memory(outcome_of(run_ / "reference"))));
}

TEST_F(Products, RefusesMeshesThatCannotTell) {
  const ProgramResult result = run_.run(
      "launch -n 2 -- train run.toml --model.num_experts=4 --model.num_experts_per_tok=2 --parallel.expert=2 "
      "--health.sdc_every=5");
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(says(result.err, "health.sdc_every = 5 with parallel.expert = 2: ")) << result.err;
}

}  // namespace
}  // namespace octet::testing
