// A bit that flips in the memory of a running rank: `octet train` finds it, names the rank, and a supervised run ends as if it
// had not happened.
#include <string>
#include <string_view>

#include "support/rank_memory.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Replicas : public ::testing::Test {
 protected:
  static constexpr const char* kTensor = "model.embed_tokens.weight";

  // Runs replicas and flips a bit of a weight of rank 1 after some steps. Returns the end of the run, which is supervised.
  ProgramResult run_with_flipped_bit(int replicas) {
    const std::string options =
        concat("--metrics.tensorboard=false --parallel.shard=1 --parallel.replicate=", replicas,
               " --training.global_batch_size=24 --training.micro_batch_size=2 --training.steps=30 --checkpoint.interval=1 "
               "--checkpoint.async=false --checkpoint.keep_latest_k=0 --health.replicas_every=1 ");
    const std::string launch = concat("launch -n ", replicas, " ");
    EXPECT_EQ(run_.run(launch + "-- train run.toml --run.output_dir=reference " + options).code, 0);
    Process process(launch + "--supervise -- train run.toml " + options, run_.path());
    EXPECT_TRUE(process.read_to_step(5));
    PendingResult end(process);
    for (int tries = 0; tries < 1000 && flipped_after_ < 0; ++tries) flip_bit();
    return end.get();
  }
  Json attempts() const { return json_of(run_.run("status out --json").out)["attempts"]; }
  std::string log_of(int rank) const { return read_file(run_ / concat("out/logs/rank-0000", rank, ".log")); }

  TinyRun run_;
  std::int64_t flipped_after_ = -1;  // the step of the newest checkpoint then

 private:
  // Succeeds if rank 1 still has the weights of the newest checkpoint, of which it writes nothing itself. Each step saves one.
  void flip_bit() {
    const pid_t pid = run_.pid_of_rank(1);
    ASSERT_GT(pid, 1);
    Stopped rank(pid);
    if (!rank.can_write()) return;
    const std::filesystem::path newest = last_checkpoint(run_ / "out");
    const std::string weight = tensors_of(newest / "rank-00000.safetensors").at(kTensor);
    if (rank.flip(std::string_view(weight).substr(weight.size() / 2 + 1, 64), 2) > 0)
      flipped_after_ = json_of(read_file(newest / "manifest.json"))["step"].get<std::int64_t>();
  }
};

void expect_equal_outcome(const TinyRun& run) {
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
}

TEST_F(Replicas, TwoOfThreeBlameTheThird) {
  const ProgramResult result = run_with_flipped_bit(3);
  ASSERT_GT(flipped_after_, 0);
  EXPECT_EQ(result.code, 0) << result.err;
  expect_equal_outcome(run_);
  const Json all = attempts();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["code"], 79);
  EXPECT_TRUE(says(all[0]["what"], "rank 1 ended with code 79: step "));
  EXPECT_EQ(all[1]["from_step"], flipped_after_) << "nothing was saved after the fault";
  for (int rank = 0; rank < 3; ++rank) {
    const std::string log = log_of(rank);
    EXPECT_TRUE(says(log, concat("octet: step ", flipped_after_ + 1, ": rank 1 ("))) << log;
    EXPECT_TRUE(says(log, concat(" holds other bits of ", kTensor, " than rank 0 ("))) << log;
    EXPECT_TRUE(says(log, "which agree; all must be equal along replicate. Nothing of this state is saved.")) << log;
  }
}

TEST_F(Replicas, OneOfTwoIsNotBlamed) {
  const ProgramResult result = run_with_flipped_bit(2);
  ASSERT_GT(flipped_after_, 0);
  EXPECT_EQ(result.code, 0) << result.err;
  expect_equal_outcome(run_);
  const Json all = attempts();
  ASSERT_EQ(all.size(), 2u) << all;
  EXPECT_EQ(all[0]["code"], 78);
  EXPECT_EQ(all[1]["from_step"], flipped_after_);
  EXPECT_TRUE(says(log_of(0), concat(" hold different bits of ", kTensor))) << log_of(0);
  EXPECT_TRUE(says(log_of(1), "no majority tells which of them is wrong")) << log_of(1);
}

// Untouched ranks of every axis train on, whether they compare their state or not.
TEST_F(Replicas, ComparingChangesNothing) {
  const std::string options = "--metrics.tensorboard=false --parallel.shard=1 --parallel.replicate=2 --parallel.tensor=2 ";
  for (const char* run : {"out --health.replicas_every=1", "reference --health.replicas_every=0"}) {
    const ProgramResult result = run_.run(concat("launch -n 4 -- train run.toml ", options, "--run.output_dir=", run));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  expect_equal_outcome(run_);
}

}  // namespace
}  // namespace octet::testing
