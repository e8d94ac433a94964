// `octet compare --gpus` runs each recipe on several numbers of ranks, each run in its own group of processes.
#include <cmath>

#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class CompareRanks : public ::testing::Test {
 protected:
  static constexpr const char* kOptions = "compare run.toml --checkpoint.interval=0 --evaluation.interval=0 ";
  ProgramResult compare(const std::string& options) const { return run_.run(kOptions + options); }
  // Returns the rows by "recipe xN".
  std::map<std::string, Json> rows() const {
    std::map<std::string, Json> result;
    const Json report = json_of(read_file(run_ / "out/report.json"));
    for (const Json& row : report.at("rows")) {
      result[row.at("name").get<std::string>() + " x" + std::to_string(row.at("processes").get<int>())] = row;
    }
    return result;
  }
  TinyRun run_;
};

double mean_loss(const fs::path& run, std::int64_t after) {
  double sum = 0, count = 0;
  for (const auto& [step, line] : metrics_of(run)) {
    if (step <= after) continue;
    sum += line["loss"].get<double>();
    ++count;
  }
  return sum / count;
}

double median_speed(const fs::path& run, std::int64_t after) {
  std::vector<double> speeds;
  for (const auto& [step, line] : metrics_of(run)) {
    if (step > after) speeds.push_back(line["tokens_per_s_per_gpu"].get<double>());
  }
  std::sort(speeds.begin(), speeds.end());
  return 0.5 * (speeds[(speeds.size() - 1) / 2] + speeds[speeds.size() / 2]);
}

TEST_F(CompareRanks, OnlyDelayedScalingHasAttentionInFp8) {
  const ProgramResult result = compare("--recipes bf16,fp8_delayed --gpus 1 --training.steps=1 --precision.attention=fp8");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    EXPECT_EQ(json_of(read_file(run_ / concat("out/", recipe, "-x1/run.json")))["config"]["precision"]["attention"],
              recipe == "bf16" ? "bf16" : "fp8");
  }
}

// The FLOPs of a token: 6 for each of the 26,624 weights in matrices (two layers of 9,216, and the head), and 12 for each of the
// 32 columns of attention's heads and of the 16 tokens that a token sees on average, in two layers.
TEST_F(CompareRanks, EveryRankKeepsItsBatchAndEveryRowItsBaseline) {
  const double flops_per_token = 6.0 * (2 * 9216 + 256 * 32) + 12.0 * 32 * 16 * 2;
  const ProgramResult result = compare("--recipes bf16,fp8_delayed --gpus 2,1 --training.steps=20");
  ASSERT_EQ(result.code, 0) << result.err;
  std::map<std::string, Json> rows = this->rows();
  ASSERT_EQ(rows.size(), 4u);
  for (const int ranks : {1, 2}) {
    for (const std::string recipe : {"bf16", "fp8_delayed"}) {
      const fs::path folder = run_ / concat("out/", recipe, "-x", ranks);
      const Json info = json_of(read_file(folder / "run.json"));
      EXPECT_EQ(info["processes"], ranks);
      EXPECT_EQ(info["recipe"], recipe);
      EXPECT_EQ(info["global_batch_size"], 4 * ranks) << "the file's is that of the smallest number";
      const auto metrics = metrics_of(folder);
      ASSERT_EQ(metrics.size(), 20u) << "every step is logged";
      EXPECT_EQ(metrics.at(20)["tokens_seen"], 20 * 4 * ranks * 32);
      for (const auto& [step, line] : metrics) {
        const double exposed = line["comm_exposed_s"], all = line["step_time_s"];
        const double rate = line["tokens_per_s"], of_each = line["tokens_per_s_per_gpu"];
        EXPECT_NEAR(rate * all, 4 * ranks * 32, 1e-6);
        EXPECT_NEAR(of_each * ranks, rate, 1e-9 * rate);
        EXPECT_NEAR(line["samples_per_s"].get<double>() * 32, rate, 1e-9 * rate);
        EXPECT_NEAR(line["tflops_per_gpu"].get<double>() * 1e12 / of_each, flops_per_token, 1e-9 * flops_per_token);
        EXPECT_TRUE(ranks == 1 ? exposed == 0 : exposed > 0 && exposed < all)
            << "step " << step << ": " << exposed << " of " << all;
      }
      EXPECT_DOUBLE_EQ(rows[concat(recipe, " x", ranks)]["mean_loss"].get<double>(), mean_loss(folder, 18));
    }
    const std::string base = concat("bf16 x", ranks), fp8 = concat("fp8_delayed x", ranks);
    EXPECT_EQ(rows[base]["faster_pct"], nullptr);
    const fs::path base_folder = run_ / concat("out/bf16-x", ranks), fp8_folder = run_ / concat("out/fp8_delayed-x", ranks);
    EXPECT_NEAR(rows[fp8]["mean_loss_pct"].get<double>(), 100 * (mean_loss(fp8_folder, 18) / mean_loss(base_folder, 18) - 1),
                1e-9);
    EXPECT_NEAR(rows[fp8]["faster_pct"].get<double>(), 100 * (median_speed(fp8_folder, 2) / median_speed(base_folder, 2) - 1),
                1e-9);
  }
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    EXPECT_EQ(rows[recipe + " x1"]["decrease_pct"], nullptr);
    const double one = median_speed(run_ / ("out/" + recipe + "-x1"), 2), two = median_speed(run_ / ("out/" + recipe + "-x2"), 2);
    EXPECT_NEAR(rows[recipe + " x2"]["decrease_pct"].get<double>(), 100 * (one - two) / one, 1e-9);
  }
  EXPECT_EQ(result.out.rfind("run 1 of 4: bf16 x1\nbf16 x1        step 1/20 ", 0), 0u) << result.out;
  EXPECT_NE(result.out.find("\nrun 4 of 4: fp8_delayed x2, about "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\nranks  recipe "), std::string::npos) << "no GPUs on a CPU:\n" << result.out;
  const std::string html = read_file(run_ / "out/report.html");
  EXPECT_NE(html.find("throughput over the number of ranks"), std::string::npos);
  EXPECT_NE(html.find("loss over the number of ranks"), std::string::npos);

  // Each run of the comparison equals the run that `octet launch` makes.
  const std::string alone =
      "launch -n 2 -- train run.toml --training.steps=20 --checkpoint.interval=0 --evaluation.interval=0 "
      "--training.global_batch_size=8 --run.output_dir=alone";
  ASSERT_EQ(run_.run(alone).code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out/fp8_delayed-x2"), outcome_of(run_ / "alone")));

  // `octet report` finds the same rows in the folder.
  ASSERT_EQ(run_.run("report out --output again").code, 0);
  const Json again = json_of(read_file(run_ / "again/report.json")).at("rows");
  ASSERT_EQ(again.size(), 4u);
  for (const Json& row : again) {
    EXPECT_EQ(row, rows[row.at("name").get<std::string>() + " x" + std::to_string(row.at("processes").get<int>())]);
  }
}

// A step of two ranks has the samples of two steps of one rank. The model is not trained, so its loss is their mean.
TEST_F(CompareRanks, TheOrderOfSamplesIsThatOfOneRank) {
  ASSERT_EQ(compare("--recipes bf16 --gpus 1,2 --training.steps=10 --optimizer.lr=0").code, 0);
  const auto one = metrics_of(run_ / "out/bf16-x1"), two = metrics_of(run_ / "out/bf16-x2");
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double apart = 0.5 * (one.at(2 * step - 1)["loss"].get<double>() + one.at(2 * step)["loss"].get<double>());
    // Each step adds 128 FP32 losses of about 5.5, in another order.
    EXPECT_NEAR(two.at(step)["loss"].get<double>(), apart, 128 * 0x1p-24 * apart) << "step " << step;
  }
}

TEST_F(CompareRanks, StoppedItSavesAndTheSameCommandGoesOn) {
  // Comparisons resume their runs even if this key tells a single run not to.
  const std::string options = "--recipes bf16 --gpus 2,1 --training.steps=60 --lr_scheduler.decay=constant --checkpoint.interval=20 "
                              "--checkpoint.resume=none";
  {
    Process process(kOptions + options, run_.path());
    bool two = false;
    while (const auto line = process.read_line()) {
      if ((two = line->rfind("bf16 x2 ", 0) == 0)) break;
    }
    ASSERT_TRUE(two) << process.wait().err;
    process.send(SIGINT);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_NE(result.err.find("octet compare: bf16 x2: the run was asked to stop (code 75)\n"), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(run_ / "out/report.html"));
    EXPECT_EQ(run_.pid_of_rank(0), -1);
    EXPECT_EQ(run_.pid_of_rank(1), -1);
  }
  const std::string done = metrics_of(run_ / "out/bf16-x1").at(60).dump();
  const ProgramResult second = compare(options);
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("resuming after step 60 from out/bf16-x1"), std::string::npos) << second.err;
  EXPECT_EQ(metrics_of(run_ / "out/bf16-x1").at(60).dump(), done) << "what was done is not done again";
  // A run whose newest checkpoint is damaged falls back to an older one, also within a comparison.
  write_text(run_ / "out/bf16-x1/checkpoints/step-00000060/manifest.json", "damaged");
  ASSERT_EQ(compare(options).code, 0);
  EXPECT_EQ(metrics_of(run_ / "out/bf16-x1").at(60).at("loss"), json_of(done).at("loss"));
  ASSERT_EQ(compare(options + " --output fresh").code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out/bf16-x2"), outcome_of(run_ / "fresh/bf16-x2")));

  // A table must not mix two configurations.
  const ProgramResult other = compare("--recipes bf16 --gpus 1 --training.steps=60 --lr_scheduler.decay=linear");
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("out/bf16-x1: was made with lr_scheduler.decay = \"constant\", not \"linear\"; starts anew"),
            std::string::npos)
      << other.err;
  EXPECT_EQ(metrics_of(run_ / "out/bf16-x1").size(), 60u);
}

TEST_F(CompareRanks, EpochsAreTheStepsOfTheFewestRanks) {
  const ProgramResult result = compare("--recipes bf16 --gpus 1,2 --training.epochs=0.2 --evaluation.interval=0");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::int64_t steps = metrics_of(run_ / "out/bf16-x1").rbegin()->first;
  EXPECT_GT(steps, 1);
  EXPECT_EQ(metrics_of(run_ / "out/bf16-x2").rbegin()->first, steps);
}

TEST_F(CompareRanks, RefusesBeforeTheFirstStep) {
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus 0,1"), 2, "--gpus: must be 1 to 1024, not 0"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus 2,1,2"), 2, "--gpus: 2 is given twice"));
  EXPECT_TRUE(refused(compare("--recipes bf16,fp32,bf16 --gpus 1,2"), 2, "--recipes: bf16 is given twice"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus one"), 2, "--gpus"));
  EXPECT_TRUE(refused(compare("--recipes bf16,fp8_curent --gpus 1"), 2, "did you mean fp8_current?"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus 1,2 --parallel.shard=1"), 2, "parallel.shard = 1: must be 2"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus 3,4 "), 2, "global_batch_size = 4", "3 ranks", "16 / 3"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --gpus 1,2 --time-budget 5"), 2, "--time-budget", "--training.steps"));
  EXPECT_FALSE(fs::exists(run_ / "out"));
}

TEST_F(CompareRanks, ARunThatFailsIsNamed) {
  const ProgramResult result = compare("--recipes bf16 --gpus 2 --data.source.0.path=nowhere");
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_NE(result.err.find("nowhere"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("octet compare: bf16 x2: rank "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace octet::testing
