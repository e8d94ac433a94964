// What an earlier run has left is refused or moved, and never deleted.
#include "octet/checkpoint/steps.h"
#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// A run of 8 steps with the checkpoints of steps 2, 4, 6 and 8.
class SetAside : public Faults {
 protected:
  void SetUp() override {
    ASSERT_EQ(train("").code, 0);
    before_ = outcome_of(run_ / "out");
    metrics_ = read_file(run_ / "out/metrics.jsonl");
  }
  ProgramResult train(const std::string& options, const std::string& how = "exec") const {
    return run_.run("train run.toml --training.steps=8 --checkpoint.interval=2 --checkpoint.keep_latest_k=0 " + options, how);
  }
  std::vector<std::int64_t> steps_in(const fs::path& run) const {
    std::vector<std::int64_t> steps;
    for (const auto& found : checkpoint::find_checkpoints(run / "checkpoints")) steps.push_back(found.step);
    return steps;
  }
  std::vector<fs::path> histories() const {
    std::vector<fs::path> found;
    if (fs::exists(run_ / "out/history")) {
      for (const std::string& name : names_in(run_ / "out/history")) found.push_back(run_ / "out/history" / name);
    }
    return found;
  }
  TinyRun run_;
  std::map<std::string, std::string> before_;
  std::string metrics_;
};

TEST_F(SetAside, ANewBeginningIsRefusedWithWhatIsThereAndTwoWaysOn) {
  for (const std::string option : {"--resume none", "--checkpoint.resume=none"}) {
    EXPECT_TRUE(refused(train(option), 2, "out: there is a run up to step 8 (4 checkpoints, metrics, a model)",
                        "checkpoint.resume = \"none\" does not continue it", "another run.output_dir",
                        "--run.set_aside=true, which moves it to out/history"));
  }
  EXPECT_TRUE(refused(train("--resume out/checkpoints/step-00000004"), 2, "out: there is a run up to step 8",
                      "does not continue it", "--run.set_aside=true, which moves what is after step 4 to out/history"));
  fs::copy(run_ / "out", run_ / "other", fs::copy_options::recursive);
  EXPECT_TRUE(refused(train("--resume other/checkpoints/step-00000008"), 2, "out: there is a run up to step 8",
                      "which moves it to out/history"));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), before_));
  EXPECT_EQ(steps_in(run_ / "out"), (std::vector<std::int64_t>{8, 6, 4, 2}));
  EXPECT_FALSE(fs::exists(run_ / "out/history"));
  // The newest checkpoint may be named: nothing comes after it.
  EXPECT_EQ(train("--resume out/checkpoints/step-00000008").code, 0);
}

TEST_F(SetAside, TwiceKeepsBoth) {
  ASSERT_EQ(train("--run.seed=5 --run.output_dir=five").code, 0);
  const ProgramResult first = train("--resume none --run.set_aside=true --run.seed=5");
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(histories().size(), 1u);
  EXPECT_NE(first.err.find("out: a run up to step 8 (4 checkpoints, metrics, a model) is now in out/history/"), std::string::npos)
      << first.err;
  EXPECT_TRUE(same_outcome(outcome_of(histories()[0]), before_));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "five")));
  ASSERT_EQ(train("--resume none --run.set_aside=true --training.steps=3").code, 0);
  ASSERT_EQ(histories().size(), 2u);
  EXPECT_TRUE(same_outcome(outcome_of(histories()[0]), before_));
  EXPECT_TRUE(same_outcome(outcome_of(histories()[1]), outcome_of(run_ / "five")));
  EXPECT_EQ(metrics_of(run_ / "out").size(), 3u);
  for (const fs::path& history : histories()) {
    EXPECT_TRUE(history.filename().string().ends_with("-step-8") || history.filename().string().ends_with("-step-8-2"))
        << history;
    EXPECT_TRUE(fs::exists(history / "tensorboard"));
    EXPECT_EQ(run_.run("report " + history.string()).code, 0) << "it is a run folder";
  }
}

TEST_F(SetAside, AnOlderCheckpointKeepsWhatItContinues) {
  const ProgramResult result = train("--resume out/checkpoints/step-00000004 --run.set_aside=true --optimizer.lr=0.001");
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(histories().size(), 1u);
  EXPECT_EQ(steps_in(histories()[0]), (std::vector<std::int64_t>{8, 6}));
  EXPECT_EQ(read_file(histories()[0] / "metrics.jsonl"), metrics_);
  EXPECT_TRUE(fs::exists(histories()[0] / "model/model.safetensors"));
  EXPECT_EQ(steps_in(run_ / "out"), (std::vector<std::int64_t>{8, 6, 4, 2}));
  const std::string now = read_file(run_ / "out/metrics.jsonl");
  const std::size_t four = metrics_.find("{\"step\":5,");
  EXPECT_EQ(now.substr(0, four), metrics_.substr(0, four));
  EXPECT_NE(now, metrics_);
}

// A run without a checkpoint has a history, too; one without a finished step has none.
TEST_F(SetAside, MetricsAreAHistory) {
  fs::remove_all(run_ / "out/checkpoints");
  fs::remove_all(run_ / "out/model");
  EXPECT_TRUE(refused(train("--resume none"), 2, "out: there is a run up to step 8 (metrics)"));
  write_text(run_ / "out/metrics.jsonl", "");
  EXPECT_TRUE(refused(train("--resume none"), 2, "out: there is a run up to step 0 (metrics)")) << "there are health samples";
  for (const char* lines : {"fp8_health.jsonl", "attention_health.jsonl"}) write_text(run_ / "out" / lines, "");
  EXPECT_EQ(train("--resume none").code, 0);
}

// Notes of a person, or lines of another program, are not cut off.
TEST_F(SetAside, LinesThatAreNoMetricsAreKept) {
  fs::create_directory(run_ / "new");
  write_text(run_ / "new/metrics.jsonl", "step,loss\n1,2.0\n");
  write_text(run_ / "new/fp8_health.jsonl", "mine\n");
  ASSERT_EQ(train("--run.output_dir=new").code, 0);
  ASSERT_EQ(names_in(run_ / "new/history").size(), 1u);
  const fs::path kept = run_ / "new/history" / names_in(run_ / "new/history").front();
  EXPECT_EQ(read_file(kept / "metrics.jsonl"), "step,loss\n1,2.0\n");
  EXPECT_EQ(read_file(kept / "fp8_health.jsonl"), "mine\n");
}

// There is nothing to go on from, and the next command may train something else.
TEST_F(SetAside, ARunThatWasKilledBeforeItsFirstCheckpointIsKept) {
  Process process("train run.toml --training.steps=100000 --checkpoint.interval=0 --run.output_dir=early", run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  process.send(SIGKILL);
  process.wait();
  const std::string killed = read_file(run_ / "early/metrics.jsonl"), about = read_file(run_ / "early/run.json");
  if (!faults_library().empty()) {  // a kill before the last of it has moved
    fs::copy(run_ / "early", run_ / "again", fs::copy_options::recursive);
    for (const char* last : {"run.json", "metrics.jsonl"}) {
      const std::string rule = concat("rename */history/*/", last, " 1 kill");
      ASSERT_EQ(train("--run.output_dir=again --run.seed=9", failing(rule)).code, 128 + SIGKILL);
    }
    ASSERT_EQ(train("--run.output_dir=again --run.seed=9").code, 0);
    std::map<std::string, std::string> kept;
    for (const auto& entry : fs::recursive_directory_iterator(run_ / "again/history")) {
      if (entry.is_regular_file()) kept[entry.path().filename()] = read_file(entry.path());
    }
    EXPECT_EQ(kept["metrics.jsonl"], killed);
    EXPECT_EQ(kept["run.json"], about);
  }
  const ProgramResult next = train("--run.output_dir=early --run.seed=9");
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_NE(next.err.find("early: a run up to step "), std::string::npos) << next.err;
  ASSERT_EQ(names_in(run_ / "early/history").size(), 1u);
  EXPECT_EQ(read_file(run_ / "early/history" / names_in(run_ / "early/history").front() / "metrics.jsonl"), killed);
}

TEST_F(SetAside, KilledInBetweenLosesNothing) {
  if (IsSkipped() || faults_library().empty()) GTEST_SKIP() << "no fault injection";
  int kills = 0;
  for (const std::string name : {"metrics.jsonl", "checkpoints", "run.json"}) {
    const ProgramResult killed = train("--resume none --run.set_aside=true", failing("rename */history/*/" + name + " 1 kill"));
    ASSERT_EQ(killed.code, 128 + 9) << killed.err;
    ++kills;
    // Whatever was moved and whatever was not, one of each is there.
    for (const std::string part :
         {"metrics.jsonl", "checkpoints/step-00000008/manifest.json", "run.json", "model/model.safetensors"}) {
      int found = fs::exists(run_ / "out" / part);
      for (const fs::path& history : histories()) found += fs::exists(history / part);
      EXPECT_EQ(found, 1) << part << " after the kill at " << name;
    }
  }
  EXPECT_EQ(kills, 3);
  ASSERT_EQ(train("--resume none --run.set_aside=true").code, 0);
}

TEST_F(SetAside, AMoveThatFailsEndsTheRun) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection";
  const ProgramResult result = train("--resume none --run.set_aside=true", failing("rename */history/*/checkpoints 1 EIO"));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_NE(result.err.find("out/checkpoints: cannot be moved to out/history/"), std::string::npos) << result.err;
  EXPECT_EQ(steps_in(run_ / "out"), (std::vector<std::int64_t>{8, 6, 4, 2}));
}

TEST_F(SetAside, AStoppedRunSaysHowToGoOn) {
  const std::string options = "--training.steps=100000 --checkpoint.interval=0 --run.output_dir=new ";
  {
    Process process("train run.toml --resume none " + options, run_.path());
    ASSERT_TRUE(process.read_to_step(3));
    process.send(SIGTERM);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_NE(result.err.find("in new/checkpoints; the same command with --resume auto continues from there\n"),
              std::string::npos)
        << result.err;
  }
  EXPECT_TRUE(refused(run_.train("--resume none " + options), 2, "new: there is a run up to step"));
  Process process("train run.toml --resume auto " + options, run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_NE(result.err.find("resuming after step "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("; the same command continues from there\n"), std::string::npos) << result.err;
}

TEST_F(SetAside, AComparisonMayBeRunTwice) {
  const std::string compare =
      "compare run.toml --recipes bf16,fp8_delayed --training.steps=4 --training.micro_batch_size=1 --output side";
  ASSERT_EQ(run_.run(compare).code, 0);
  const auto first = outcome_of(run_ / "side/bf16");
  const ProgramResult second = run_.run(compare + " --run.seed=9");
  ASSERT_EQ(second.code, 0) << second.err;
  for (const std::string arm : {"bf16", "fp8_delayed"}) {
    EXPECT_NE(second.err.find("side/" + arm + ": a run up to step 4 (1 checkpoint, metrics, a model) is now in side/" + arm +
                              "/history/"),
              std::string::npos)
        << second.err;
    ASSERT_EQ(names_in(run_ / ("side/" + arm + "/history")).size(), 1u);
  }
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "side/bf16/history" / names_in(run_ / "side/bf16/history")[0]), first));
  EXPECT_EQ(run_.run("report side").code, 0);
}

}  // namespace
}  // namespace octet::testing
