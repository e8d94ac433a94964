// `octet compare` trains the same model on the same data, with the same seed and steps, in each recipe. It makes a table,
// report.json and report.html.
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// The corpus does not answer. Nothing is trained yet.
TEST(CompareSignals, ASignalBeforeTheFirstRunEndsItWithALine) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  for (const auto& [name, signal] : {std::pair("SIGTERM", SIGTERM), std::pair("SIGINT", SIGINT)}) {
    const TinyRun run;
    Process process("compare run.toml --recipes bf16 --training.epochs=1", run.path(),
                    "exec " + with_faults("open */corpus.idx 1+ hang"));
    while (!fs::exists(run / "faults.log")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    process.send(signal);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75);
    EXPECT_EQ(result.err, concat(name, ": training has not begun, so there is nothing to save\n"));
  }
}

// The report hangs on its disk. The last case ends its only run with an exception, which compare catches.
TEST(CompareSignals, ASignalWhileTheReportIsWrittenEndsItWithALine) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  for (const auto& [name, signal, options] :
       {std::tuple("SIGTERM", SIGTERM, ""), std::tuple("SIGINT", SIGINT, "--gpus 1"),
        std::tuple("SIGTERM", SIGTERM, "--optimizer.lr=1e30 --anomaly.max_rollbacks=0")}) {
    const TinyRun run;
    Process process(concat("compare run.toml --recipes bf16 --training.steps=20 --training.micro_batch_size=1 ", options, " > stdout"), run.path(),
                    "exec " + with_faults("open */report.json* 1+ hang"));
    while (!fs::exists(run / "faults.log")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    process.send(signal);
    const ProgramResult result = process.wait();
    EXPECT_EQ(result.code, 75) << options << result.err;
    EXPECT_TRUE(result.err.ends_with(
        concat(name, ": training is finished and saved; the rest of the command, such as its report, is not done\n")))
        << options << result.err;
  }
}

class Compare : public ::testing::Test {
 protected:
  ProgramResult compare(const std::string& options) const {
    return run_.run("compare run.toml --training.steps=20 --checkpoint.interval=0 " + options);
  }
  Json report(const fs::path& folder) const { return json_of(read_file(run_ / folder.string() / "report.json")); }
  TinyRun run_;
};

// Returns the mean loss over the last tenth of the steps in metrics.jsonl.
double last_tenth(const fs::path& run) {
  double sum = 0;
  int count = 0;
  for (const auto& [step, line] : metrics_of(run)) {
    if (step <= 18) continue;
    sum += line["loss"].get<double>();
    ++count;
  }
  EXPECT_EQ(count, 2);
  return sum / count;
}

TEST_F(Compare, TrainsEachRecipeAndRepeatsTheBaseline) {
  const ProgramResult result = compare("--recipes bf16,fp8_delayed,fp8_block --output side --metrics.log_freq=7");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json report = this->report("side");
  std::map<std::string, Json> rows;
  for (const Json& row : report.at("rows")) rows[row.at("name").get<std::string>()] = row;
  ASSERT_EQ(rows.size(), 4u) << report;
  for (const std::string name : {"bf16", "bf16-repeat", "fp8_delayed", "fp8_block"}) {
    ASSERT_TRUE(rows.count(name)) << name << " " << report;
    const fs::path folder = run_ / "side" / name;
    const Json info = json_of(read_file(folder / "run.json"));
    EXPECT_EQ(info["recipe"], name == "bf16-repeat" ? "bf16" : name);
    EXPECT_EQ(info["repeat_of"], name == "bf16-repeat" ? "bf16" : "");
    EXPECT_EQ(info["micro_batch_size"], name == "bf16-repeat" ? 1 : 2);
    EXPECT_EQ(metrics_of(folder).size(), 20u) << "every step is logged";
    EXPECT_DOUBLE_EQ(rows[name]["mean_loss"].get<double>(), last_tenth(folder)) << name;
    EXPECT_EQ(rows[name]["final_loss"], metrics_of(folder).at(20)["loss"]) << name;
    EXPECT_EQ(rows[name]["eval_loss"], metrics_of(folder).at(20)["eval_loss"]) << name;
    EXPECT_NE(result.out.find(name), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("\n" + name + std::string(13 - name.size(), ' ') + "step 1/20 "), std::string::npos)
        << "in a column";
  }
  // Each run of the comparison equals the run that `octet train` makes.
  ASSERT_EQ(run_.train("--training.steps=20 --checkpoint.interval=0 --run.output_dir=alone").code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "side/fp8_delayed"), outcome_of(run_ / "alone")));
  // A report shows a run alone, so a comparison in its folder would be hidden.
  for (const char* gpus : {"", " --gpus 1"})
    EXPECT_TRUE(
        refused(compare(concat("--recipes bf16 --output alone", gpus)), 2, "alone: this is the folder of a run", "--output"));
  EXPECT_FALSE(fs::exists(run_ / "alone/bf16"));
  fs::copy(run_ / "side/bf16", run_ / "alone/bf16", fs::copy_options::recursive);
  EXPECT_NE(run_.run("report alone")
                .err.find("alone: the folder of a run; runs below it are left out; to include them, give alone/bf16\n"),
            std::string::npos);
  // The repeat adds the same numbers in another order, so its loss is close but not equal.
  const double once = last_tenth(run_ / "side/bf16"), again = last_tenth(run_ / "side/bf16-repeat");
  EXPECT_NE(once, again);
  EXPECT_NEAR(once, again, 0.02 * once);
  EXPECT_NEAR(report.at("spread").at("mean_loss_pct").get<double>(), 100 * std::abs(again / once - 1), 1e-9);
  EXPECT_NE(result.out.find("Two bf16 runs on the same batches"), std::string::npos) << result.out;
  EXPECT_TRUE(rows["bf16"]["equal_loss"].is_null());
  for (const char* name : {"bf16-repeat", "fp8_delayed", "fp8_block"}) {
    const Json& equal = rows[name]["equal_loss"];
    EXPECT_TRUE(equal["noise_from"] == "repeat" || equal["noise_from"] == "scatter") << equal;
    EXPECT_GT(equal["speedup"].get<double>(), 0) << equal;
    EXPECT_LE(equal["time_s"].get<double>(), rows[name]["train_time_s"].get<double>()) << equal;
    EXPECT_LE(equal["baseline_time_s"].get<double>(), rows["bf16"]["train_time_s"].get<double>()) << equal;
  }
  EXPECT_NE(result.out.find("Equal loss: how many times faster than bf16"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(" or from two bf16 runs, whichever is larger;"), std::string::npos) << result.out;

  const std::string html = read_file(run_ / "side/report.html");
  EXPECT_EQ(html.rfind("<!doctype html>", 0), 0u) << html.substr(0, 100);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  for (const char* part : {"bf16", "fp8_delayed", "fp8_block"}) EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("src="), std::string::npos) << "opens without a network";
  EXPECT_NE(result.out.find("report: side/report.html"), std::string::npos) << result.out;

  // Commands that want one run name those that are there.
  const std::string several =
      "side: holds several runs: bf16, bf16-repeat, fp8_block, fp8_delayed; give one of them, such as side/fp8_delayed";
  for (const char* command : {"status side", "generate --model side --prompt a", "eval run.toml --checkpoint side",
                              "convert export --checkpoint side --output x", "advise run.toml --device cpu --health side",
                              "probe --model side --tokens x --recipe fp32 --output y"})
    EXPECT_TRUE(refused(run_.run(command), 76, several)) << command;
}

TEST_F(Compare, PrintsItsTableAsJson) {
  const ProgramResult result = compare("--recipes bf16,fp8_current --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_of(result.out).dump(), report("out").dump());  // nothing else is there
  EXPECT_NE(result.err.find("bf16         step "), std::string::npos) << result.err;
}

TEST_F(Compare, AnOddMicroBatchHasNoRepeat) {
  const ProgramResult result = compare("--recipes bf16,fp8_current --training.micro_batch_size=1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(run_ / "out/bf16-repeat"));
  EXPECT_EQ(report("out").at("rows").size(), 2u);
  EXPECT_EQ(result.out.find("Two bf16 runs"), std::string::npos) << result.out;
}

TEST_F(Compare, ATimeBudgetLowersTheStepsByARuleThatIsPrinted) {
  const ProgramResult result = run_.run(
      "compare run.toml --recipes bf16,fp8_current --training.steps=1000000 --time-budget 0.3 --checkpoint.interval=0 "
      "--evaluation.interval=0 --metrics.tensorboard=false");
  ASSERT_EQ(result.code, 0) << result.err;
  long long steps = 0, of = 0;
  const std::size_t at = result.out.find("steps: ");
  ASSERT_NE(at, std::string::npos) << result.out;
  double budget = 0, step = 0, overhead = 0, affordable = 0;
  ASSERT_EQ(
      std::sscanf(result.out.c_str() + at, "steps: %lld of %lld (budget %lf s / (one step of all 3 runs %lf s x %lf) = %lf; ",
                  &steps, &of, &budget, &step, &overhead, &affordable),
      6)
      << result.out;
  EXPECT_EQ(of, 1000000);
  EXPECT_NEAR(affordable, budget / (step * overhead), 1) << "the printed numbers give the printed result";
  EXPECT_GE(steps, 20);
  EXPECT_LT(steps, 1000000);
  for (const char* name : {"bf16", "bf16-repeat", "fp8_current"}) {
    EXPECT_EQ(metrics_of(run_ / "out" / name).rbegin()->first, steps) << name;
  }
}

TEST_F(Compare, ATimeBudgetLowersTheStepsOfEpochs) {
  const ProgramResult result = run_.run(
      "compare run.toml --recipes fp8_current --training.epochs=100000 --time-budget 0.001 --checkpoint.interval=0 "
      "--evaluation.interval=0 --metrics.tensorboard=false");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::size_t at = result.out.find("steps: ");
  ASSERT_NE(at, std::string::npos) << result.out;
  const std::string rule = result.out.substr(at, result.out.find('\n', at) - at);
  EXPECT_EQ(rule.rfind("steps: 20 of ", 0), 0u) << rule;
  EXPECT_NE(rule.find("; at least 20, at most "), std::string::npos) << rule;
  EXPECT_EQ(metrics_of(run_ / "out/fp8_current").rbegin()->first, 20);
}

// The remedy has nothing to do in BF16, and octet train refuses it there.
TEST_F(Compare, ARemedyForFp8IsLeftOutInBf16) {
  const ProgramResult result =
      compare("--recipes bf16,fp8_delayed --training.steps=2 --anomaly.remedy=demote --metrics.health_freq=1");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_of(read_file(run_ / "out/bf16/run.json"))["config"]["anomaly"]["remedy"], "rollback");
  EXPECT_EQ(json_of(read_file(run_ / "out/fp8_delayed/run.json"))["config"]["anomaly"]["remedy"], "demote");
  EXPECT_EQ(compare("--gpus 1 --recipes bf16 --training.steps=2 --anomaly.remedy=demote --output ranks").code, 0);
}

TEST_F(Compare, RefusesBeforeTheFirstStep) {
  EXPECT_TRUE(refused(compare("--recipes bf16,fp8_current --precision.skip=nothing"), 2, "nothing", "matches no linear layer"));
  EXPECT_TRUE(refused(compare("--recipes bf16,fp8_curent"), 2, "fp8_curent", "did you mean fp8_current?"));
  EXPECT_TRUE(refused(compare("--recipes bf16 --data.source.0.path=nowhere"), 76, "nowhere"));
  EXPECT_FALSE(fs::exists(run_ / "out/bf16/metrics.jsonl"));
}

TEST_F(Compare, SigtermStopsTheWhole) {
  Process process("compare run.toml --recipes bf16,fp8_current --training.steps=100000 --checkpoint.interval=0", run_.path());
  ASSERT_TRUE(process.read_line());  // the first step has ended
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_FALSE(fs::exists(run_ / "out/fp8_current"));
}

}  // namespace
}  // namespace octet::testing
