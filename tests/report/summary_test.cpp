#include "octet/report/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "octet/base/json.h"
#include "octet/report/html.h"
#include "report/runs.h"

namespace octet::report {
namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Summarize, LastTenthMedianAndLastValues) {
  report::Run run = make_run("a", "bf16", 20, 1, 100);
  run.metrics[0].tokens_per_s_per_gpu = 1;      // steps 1 and 2 are the first tenth
  run.metrics[1].tokens_per_s_per_gpu = 1;
  run.metrics[2].tokens_per_s_per_gpu = 1e9;    // one outlier does not move the median
  run.metrics[5].memory_peak_gib = 7;
  const Summary s = summarize(run);
  EXPECT_EQ(s.steps, 20);
  EXPECT_EQ(s.tokens, 20000);
  EXPECT_EQ(s.tokens_per_s_per_process, 100);
  EXPECT_DOUBLE_EQ(s.final_loss, 2 + 3.0 / 20);
  EXPECT_DOUBLE_EQ(s.mean_loss, 2 + 0.5 * (3.0 / 19 + 3.0 / 20));  // the mean over steps 19 and 20
  EXPECT_DOUBLE_EQ(s.eval_loss, 1.1 * (2 + 3.0 / 20));
  EXPECT_EQ(s.memory_peak_gib, 7);
  EXPECT_DOUBLE_EQ(s.train_time_s, 10);
  EXPECT_TRUE(std::isnan(s.mfu));
}

TEST(Summarize, LinesThatAreNotEveryStep) {
  report::Run run = make_run("a", "bf16", 100, 1, 100);
  std::erase_if(run.metrics, [](const auto& m) { return m.step % 10 != 0; });
  const Summary s = summarize(run);
  EXPECT_DOUBLE_EQ(s.mean_loss, 2.03);      // only step 100 comes after step 90
  EXPECT_DOUBLE_EQ(s.train_time_s, 50);     // each line covers ten steps
}

TEST(Summarize, NothingAndNotFinite) {
  const Summary none = summarize(report::Run{});
  EXPECT_TRUE(std::isnan(none.mean_loss) && std::isnan(none.final_loss) && std::isnan(none.tokens_per_s_per_process));
  report::Run run = make_run("a", "bf16", 20, 1, 100);
  run.metrics[19].loss = kInf;
  EXPECT_DOUBLE_EQ(summarize(run).mean_loss, 2 + 3.0 / 19);
  EXPECT_FALSE(std::isfinite(summarize(run).final_loss));
  run.metrics.resize(1);
  EXPECT_EQ(summarize(run).tokens_per_s_per_process, 100);
}

std::vector<report::Run> three_runs() {
  std::vector<report::Run> runs{make_run("bf16 (repeat)", "bf16", 100, 0.999, 90), make_run("bf16", "bf16", 100, 1, 100),
                        make_run("fp8_delayed", "fp8_delayed", 100, 1.002, 150)};
  runs[0].info.repeat_of = "bf16";
  return runs;
}

TEST(Compare, PercentagesAgainstTheBaselineAndTheSpread) {
  const Comparison c = compare(three_runs());
  EXPECT_EQ(c.baseline, "bf16");
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_TRUE(c.rows[0].is_baseline);
  EXPECT_TRUE(std::isnan(c.rows[0].faster_pct));
  EXPECT_EQ(c.rows[1].summary.name, "fp8_delayed");
  EXPECT_NEAR(c.rows[1].faster_pct, 50, 1e-9);
  EXPECT_NEAR(c.rows[1].mean_loss_pct, 0.2, 1e-9);
  EXPECT_NEAR(c.rows[1].final_loss_pct, 0.2, 1e-9);
  EXPECT_NEAR(c.rows[1].eval_loss_pct, 0.2, 1e-9);
  EXPECT_TRUE(c.rows[2].is_repeat);
  ASSERT_TRUE(c.spread.has_value());
  EXPECT_NEAR(c.spread->mean_loss_pct, 0.1, 1e-9);
  EXPECT_NEAR(c.spread->eval_loss_pct, 0.1, 1e-9);
}

// A run that stopped early, or goes on, has a larger loss than a finished one, whatever its recipe.
TEST(Compare, LossesOfOtherLengthsAreNotCompared) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 20, 1, 100), make_run("fp8", "fp8_block", 13, 1, 150),
                           make_run("fp8_current", "fp8_current", 20, 1, 120)};
  runs[1].metrics.back().eval_losses = runs[0].metrics.back().eval_losses = {{"near", 2.0}};
  const Comparison comparison = compare(runs);
  const Row& row = comparison.rows[1];
  EXPECT_DOUBLE_EQ(row.faster_pct, 50);
  for (const double pct : {row.final_loss_pct, row.mean_loss_pct, row.eval_loss_pct}) EXPECT_TRUE(std::isnan(pct));
  EXPECT_TRUE(row.eval_losses_pct.empty());
  EXPECT_DOUBLE_EQ(comparison.rows[2].mean_loss_pct, 0);
  const std::string sentence = "fp8 has 13 steps and bf16 has 20, so the losses at their ends are not compared.";
  EXPECT_EQ(warning_sentences(comparison), sentence);
  EXPECT_TRUE(has(render_text(comparison), "\n" + sentence + "\n"));
  const std::string page = render_html("a title", runs, comparison);
  EXPECT_TRUE(has(page, sentence));
  EXPECT_TRUE(has(page, "fp8_current ends 0.00% above bf16"));
}

TEST(Compare, LossesOfOtherJobsAreNotCompared) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 20, 1, 100), make_run("wide", "bf16", 20, 1, 150),
                                   make_run("old", "bf16", 20, 1, 150)};
  for (report::Run& run : runs) {
    run.info.parameters = 1000;
    run.info.seq_len = 32;
  }
  runs[1].info.parameters = 2000;
  runs[1].info.seq_len = 64;
  runs[2].info = {.name = "old", .recipe = "bf16"};  // of a run without run.json
  const Comparison comparison = compare(runs);
  EXPECT_DOUBLE_EQ(comparison.rows[1].faster_pct, 50);
  EXPECT_TRUE(std::isnan(comparison.rows[1].mean_loss_pct));
  EXPECT_FALSE(comparison.rows[1].equal_loss);
  EXPECT_DOUBLE_EQ(comparison.rows[2].mean_loss_pct, 0);
  EXPECT_EQ(warning_sentences(comparison),
            "wide differs from bf16 in parameters and sequence length, so their losses are not compared.");
  EXPECT_TRUE(has(render_html("a title", runs, comparison), "Distance from bf16")) << "old is still compared";
  runs.pop_back();
  EXPECT_FALSE(has(render_html("a title", runs, compare(runs)), "Distance from bf16"));
}

// With more ranks the batch may be larger. The only baseline then has another job.
TEST(Compare, LossesOfOtherBatchSizesAreNotComparedOnOtherNumbersOfRanks) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 20, 1, 100), make_run("fp8", "fp8_block", 20, 0.8, 150)};
  runs[1].info.processes = 4;
  EXPECT_NEAR(compare(runs).rows[1].mean_loss_pct, -20, 1e-9);
  runs[1].info.tokens_per_step = 4000;
  const Comparison comparison = compare(runs);
  EXPECT_TRUE(std::isnan(comparison.rows[1].mean_loss_pct));
  EXPECT_DOUBLE_EQ(comparison.rows[1].faster_pct, 50);
  EXPECT_EQ(
      warning_sentences(comparison),
      "fp8 differs from bf16 in tokens per step, so their losses are not compared. fp8 differs from bf16 in number of ranks, "
      "so the difference in their speeds is not due to the recipe alone.");
}

TEST(Compare, SpeedsOnOtherHardwareAreComparedWithAWarning) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 100, 1, 100), make_run("fp8", "fp8_block", 100, 1, 150)};
  for (report::Run& run : runs) run.info.device_name = "NVIDIA H200";
  EXPECT_EQ(warning_sentences(compare(runs)), "");
  EXPECT_TRUE(has(render_html("a title", runs, compare(runs)), "fp8 is the fastest, 50% faster than bf16."));
  const auto warning = [](const std::string& what) {
    return "fp8 differs from bf16 in " + what + ", so the difference in their speeds is not due to the recipe alone.";
  };
  runs[1].info.processes = 2;
  Comparison comparison = compare(runs);
  EXPECT_EQ(warning_sentences(comparison), warning("number of ranks"));
  EXPECT_EQ(comparison.rows[1].equal_loss->reason, "the baseline ran on another number of ranks");
  runs[1].info.device_name = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(warning_sentences(compare(runs)), warning("device and number of ranks"));
  runs[1].info.processes = 1;
  comparison = compare(runs);
  EXPECT_EQ(warning_sentences(comparison), warning("device"));
  EXPECT_EQ(comparison.rows[1].equal_loss->reason, "the baseline ran on another device");
  EXPECT_DOUBLE_EQ(comparison.rows[1].mean_loss_pct, 0);
  EXPECT_FALSE(has(render_html("a title", runs, comparison), "is the fastest"));
  runs[1].info.device_name = "";  // unknown
  EXPECT_EQ(warning_sentences(compare(runs)), "");
  runs[1].info.device = "cpu";
  EXPECT_EQ(warning_sentences(compare(runs)), warning("device"));
  EXPECT_TRUE(has(render_text(compare(runs)), "tok/s/process")) << "no rate of a CPU stands under tok/s/gpu";
}

TEST(Compare, LossesOnOtherDataAreNotCompared) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 20, 1, 100), make_run("fp8", "fp8_block", 20, 0.5, 150)};
  runs[0].info.data = "data/prose (train), data/code";
  const auto warning = [&](const std::string& data) {
    runs[1].info.data = data;
    return warning_sentences(compare(runs));
  };
  EXPECT_EQ(warning("data/prose (train), data/poems"), "fp8 differs from bf16 in data, so their losses are not compared.");
  EXPECT_FALSE(compare(runs).rows[1].equal_loss);
  EXPECT_EQ(warning("data/prose, data/code"), "fp8 differs from bf16 in data, so their losses are not compared.");
  EXPECT_EQ(warning(runs[0].info.data), "");
  EXPECT_EQ(warning(runs[0].info.data + ", data/held-out (evaluation near)"), "") << "training is the same";
  EXPECT_EQ(warning(""), "") << "unknown";
  // The same corpus may lie elsewhere on another machine.
  EXPECT_EQ(
      warning("/scratch/prose (train), /scratch/code"),
      "fp8 differs from bf16 in folder of the data, so they may have seen other batches, and part of the difference between "
      "their losses may be chance.");
  EXPECT_NEAR(compare(runs).rows[1].mean_loss_pct, -50, 1e-9);
}

// A configuration as run.json has it. Validation sources and named sets are added by the tests.
Json config_of_data() {
  return {{"data",
           {{"document_mask", false},
            {"packing", "stream"},
            {"split", {0.98, 0.02}},
            {"source",
             {{{"path", "data/prose"}, {"weight", 1.0}, {"split", "auto"}},
              {{"path", "data/code"}, {"weight", 3.0}, {"split", "auto"}}}}}},
          {"training", {{"mask", true}}},
          {"evaluation", {{"sequences", 16}, {"decides", ""}}}};
}

// Two runs of the same losses and data. The second one has this configuration.
std::vector<report::Run> runs_with(const Json& config) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 20, 1, 100), make_run("fp8", "fp8_block", 20, 1, 150)};
  for (report::Run& run : runs) run.info.data = "data/prose, data/code";
  runs[0].info.config.text = config_of_data().dump();
  runs[1].info.config.text = config.dump();
  return runs;
}

TEST(Compare, LossesOnTheSameSourcesUsedInAnotherWayAreNotCompared) {
  const auto changed = [](const char* path, const Json& value) {
    Json config = config_of_data();
    config[Json::json_pointer(path)] = value;
    return config;
  };
  for (const auto& [path, value, name] :
       {std::tuple<const char*, Json, std::string>{"/data/source/1/weight", 99.0, "data.source.weight"},
        {"/data/split", {0.5, 0.5}, "data.split"},
        {"/data/packing", "documents", "data.packing"},
        {"/training/mask", false, "training.mask"}}) {
    const Comparison comparison = compare(runs_with(changed(path, value)));
    EXPECT_EQ(warning_sentences(comparison), "fp8 differs from bf16 in " + name + ", so their losses are not compared.");
    EXPECT_TRUE(std::isnan(comparison.rows[1].mean_loss_pct)) << name;
    EXPECT_FALSE(comparison.rows[1].equal_loss) << name;
  }
  EXPECT_EQ(warning_sentences(compare(runs_with(config_of_data()))), "");
  Json config = changed("/data/source/0/weight", 0.5);
  config["data"]["source"][1]["weight"] = 1.5;
  EXPECT_EQ(warning_sentences(compare(runs_with(config))), "") << "the same shares";
  for (const Json& damaged :
       {Json(), Json(5), Json{{"data", 5}}, Json{{"data", {{"source", {1, nullptr, 2}}}}, {"evaluation", Json::object()}}})
    EXPECT_EQ(warning_sentences(compare(runs_with(damaged))), "") << damaged;
}

TEST(Compare, HeldOutLossesOfOtherTextAreNotCompared) {
  const auto warning = [](const std::string& what) {
    return "fp8 differs from bf16 in " + what + ", so their held-out losses are not compared.";
  };
  const auto row_of = [&](const std::vector<report::Run>& runs, const std::string& what) {
    const Comparison comparison = compare(runs);
    EXPECT_EQ(warning_sentences(comparison), what.empty() ? "" : warning(what));
    EXPECT_DOUBLE_EQ(comparison.rows[1].mean_loss_pct, 0) << "training is the same";
    EXPECT_EQ(std::isnan(comparison.rows[1].eval_loss_pct), !what.empty()) << what;
    return comparison.rows[1];
  };
  std::vector<report::Run> runs = runs_with(config_of_data());
  for (telemetry::StepMetrics& line : runs[0].metrics) line.eval_loss.reset();
  runs[0].metrics[14].eval_loss = 3.0;  // the last one of FP8 is after step 20
  row_of(runs, "the step of the last evaluation");

  Json config = config_of_data();
  config["evaluation"]["sequences"] = 1;
  row_of(runs_with(config), "evaluation.sequences");

  config = config_of_data();
  config["evaluation"]["source"] = Json::array({{{"name", "near"}, {"path", "data/prose"}}});
  row_of(runs_with(config), "held-out text");

  // A set that both evaluate is compared, even if the one that decides is another.
  Json two = config;
  two["evaluation"]["source"].push_back({{"name", "far"}, {"path", "elsewhere/poems"}});
  two["evaluation"]["decides"] = "far";
  runs = runs_with(two);
  two["evaluation"]["source"] = {{{"name", "far"}, {"path", "data/poems"}}, {{"name", "near"}, {"path", "data/songs"}}};
  runs[0].info.config.text = two.dump();
  for (report::Run& run : runs) run.metrics.back().eval_losses = {{"near", 2.0}, {"far", 3.0}};
  const Row row = row_of(runs, "held-out text");
  EXPECT_DOUBLE_EQ(number_named(row.eval_losses_pct, "far"), 0);
  EXPECT_TRUE(std::isnan(number_named(row.eval_losses_pct, "near")));
  two = parse_ordered_json(runs[1].info.config.text, "a configuration");
  two["evaluation"]["decides"] = "near";
  runs[0].info.config.text = two.dump();
  row_of(runs, "evaluation.decides");
}

TEST(Compare, AnotherValidationSourceIsTheSameTraining) {
  Json config = config_of_data();
  config["data"]["source"].push_back({{"path", "data/poems"}, {"weight", 1.0}, {"split", "validation"}});
  std::vector<report::Run> runs = runs_with(config);
  config["data"]["source"][2]["path"] = "data/songs";
  runs[0].info.config.text = config.dump();
  runs[0].info.data += ", data/songs (validation)";
  runs[1].info.data += ", data/poems (validation)";
  const Comparison comparison = compare(runs);
  EXPECT_EQ(warning_sentences(comparison), "fp8 differs from bf16 in held-out text, so their held-out losses are not compared.");
  EXPECT_DOUBLE_EQ(comparison.rows[1].mean_loss_pct, 0);
  EXPECT_TRUE(std::isnan(comparison.rows[1].eval_loss_pct));
}

// The batch grew half-way, back to the size that the baseline has, so run.json has the same tokens_per_step.
TEST(Compare, LossesAfterOtherNumbersOfTokensAreNotCompared) {
  std::vector<report::Run> runs = runs_with(config_of_data());
  for (std::size_t i = 0; i < runs[1].metrics.size(); ++i) runs[1].metrics[i].tokens_seen -= std::min<std::int64_t>(i, 10) * 500;
  runs[1].info.changes = "step 10: training.global_batch_size 2 -> 4; step 10: precision.recipe \"bf16\" -> \"fp8_block\"";
  const Comparison comparison = compare(runs);
  EXPECT_EQ(warning_sentences(comparison),
            "fp8 was not trained in one precision (step 10: precision.recipe \"bf16\" -> \"fp8_block\"). "
            "fp8 differs from bf16 in tokens seen by step 20, so their losses are not compared.");
  EXPECT_TRUE(std::isnan(comparison.rows[1].final_loss_pct));
}

// A loss falls, so a mean without its first or last steps would differ.
TEST(Compare, TheLastTenthIsOverTheStepsOfBoth) {
  std::vector<report::Run> runs = {make_run("bf16", "bf16", 100, 1, 100), make_run("fp8", "fp8_block", 100, 1, 150)};
  runs[1].metrics[91].loss = std::nan("");
  runs[0].metrics[94].loss = std::nan("");
  runs[1].metrics.erase(runs[1].metrics.begin() + 96);  // lines that were not logged
  runs[0].metrics.erase(runs[0].metrics.begin() + 98);
  EXPECT_DOUBLE_EQ(compare(runs).rows[1].mean_loss_pct, 0);
  EXPECT_NE(compare(runs).rows[0].summary.mean_loss, compare(runs).rows[1].summary.mean_loss);
}

TEST(Compare, RunsWithOtherSeedsAreComparedWithAWarning) {
  std::vector<report::Run> runs = three_runs();
  for (report::Run& run : runs) run.info.data = "data/corpus";
  const std::string same = "The same batch at the same step";
  EXPECT_TRUE(has(render_html("a title", runs, compare(runs)), same));
  runs[0].info.seed = runs[2].info.seed = 7;  // the repeat and FP8
  const Comparison comparison = compare(runs);
  EXPECT_NEAR(comparison.rows[1].mean_loss_pct, 0.2, 1e-9);
  const std::string text = render_text(comparison), html = render_html("a title", runs, comparison);
  EXPECT_TRUE(has(text,
                  "fp8_delayed differs from bf16 in seed, so they may have seen other batches, and part of the difference "
                  "between their losses may be chance."))
      << text;
  EXPECT_TRUE(has(text, "Two bf16 runs that are not the same in seed differ by 0.10% in mean loss")) << text;
  EXPECT_TRUE(has(html, "Distance from bf16"));
  EXPECT_FALSE(has(html, same));
}

TEST(Compare, ARepeatOfAnotherJobIsNoNoise) {
  std::vector<report::Run> runs = three_runs();
  for (report::Run& run : runs) run.info.data = "data/corpus";
  runs[0].info.data = "data/other";
  const Comparison comparison = compare(runs);
  EXPECT_EQ(comparison.rows[1].equal_loss->noise_from, "scatter");
  EXPECT_EQ(spread_sentence(comparison), "");
}

TEST(Compare, ARunThatEndsWithoutAFiniteLossHasNoGap) {
  for (const std::size_t lost : {1, 2}) {  // the baseline, and FP8
    std::vector<report::Run> runs = three_runs();
    for (std::size_t i = 95; i < 100; ++i) runs[lost].metrics[i].loss = std::nan("");
    const Comparison comparison = compare(runs);
    const Row& fp8 = comparison.rows[1];
    for (const double pct : {fp8.final_loss_pct, fp8.mean_loss_pct, fp8.eval_loss_pct}) EXPECT_TRUE(std::isnan(pct));
    EXPECT_TRUE(std::isnan(fp8.equal_loss->speedup));
    const std::string sentence = runs[lost].info.name + " ends without a finite loss, so its losses are not compared.";
    EXPECT_TRUE(has(render_text(comparison), sentence)) << render_text(comparison);
    EXPECT_TRUE(has(render_html("a title", runs, comparison), "<p class=\"lead\"><strong>" + sentence));
  }
}

// The batches of the last steps had no token that is trained on. A NaN of the model instead counts as a skipped step.
TEST(Compare, RunsThatEndWithEmptyStepsAreCompared) {
  std::vector<report::Run> runs = three_runs();
  for (report::Run& run : runs) {
    run.info.code = 0;
    for (std::size_t i = 98; i < 100; ++i) run.metrics[i].loss = std::nan("");
  }
  const Comparison comparison = compare(runs);
  EXPECT_EQ(warning_sentences(comparison), "");
  EXPECT_DOUBLE_EQ(comparison.rows[0].summary.final_loss, 2 + 3.0 / 98);
  EXPECT_EQ(comparison.rows[0].summary.final_step, 98);
  EXPECT_NEAR(comparison.rows[1].final_loss_pct, 0.2, 1e-9);
  EXPECT_EQ(comparison.rows[1].equal_loss->reason, "");
  runs[2].metrics[98].loss = 2;  // of FP8 alone
  EXPECT_TRUE(std::isnan(compare(runs).rows[1].final_loss_pct));
  EXPECT_NEAR(compare(runs).rows[1].mean_loss_pct, 0.2, 1e-9);
  runs[2].metrics[98].loss = std::nan("");
  runs[2].metrics[98].skipped_steps = runs[2].metrics[99].skipped_steps = 1;
  EXPECT_TRUE(has(warning_sentences(compare(runs)), "fp8_delayed ends without a finite loss, so its losses are not compared."));
}

TEST(Compare, SaysWhichRunsDidNotFinish) {
  std::vector<report::Run> runs = three_runs();
  for (report::Run& run : runs) {
    run.info.steps = 100;
    run.info.ended = "2026-11-28T10:00:00Z";
    run.info.code = 0;
  }
  EXPECT_EQ(warning_sentences(compare(runs)), "");
  runs[2].info.steps = 1000;
  EXPECT_EQ(warning_sentences(compare(runs)), "fp8_delayed: 100 of 1,000 steps, stopped.");
  runs[2].info.code = 1;
  EXPECT_EQ(warning_sentences(compare(runs)), "fp8_delayed: 100 of 1,000 steps, ended with code 1.");
  EXPECT_TRUE(has(render_html("a title", runs, compare(runs)), "<strong>fp8_delayed: 100 of 1,000 steps, ended with code 1."));
  runs[2].info.steps = 100;
  EXPECT_EQ(warning_sentences(compare(runs)), "fp8_delayed: 100 of 100 steps, ended with code 1.");
}

TEST(Compare, WithoutABaseline) {
  std::vector<report::Run> runs = three_runs();
  runs[1].info.name = "other";
  const Comparison c = compare(runs);
  EXPECT_EQ(c.baseline, "");
  EXPECT_FALSE(c.spread.has_value());
  for (const Row& row : c.rows) EXPECT_TRUE(std::isnan(row.mean_loss_pct));
  EXPECT_EQ(spread_sentence(c), "");
  EXPECT_TRUE(compare({}).rows.empty());
}

TEST(RenderText, TheTable) {
  EXPECT_EQ(
      render_text(compare(three_runs())),
      "recipe         tok/s/gpu  faster  equal loss  noise  final loss  higher  last tenth  higher  held-out  higher\n"
      "-------------------------------------------------------------------------------------------------------------\n"
      "bf16                 100       -           -      -      2.0300       -      2.0314       -    2.2330       -\n"
      "fp8_delayed          150  +50.0%       0.88x   5.9%      2.0341  +0.20%      2.0355  +0.20%    2.2375  +0.20%\n"
      "bf16 (repeat)         90  -10.0%       1.07x   6.1%      2.0280  -0.10%      2.0294  -0.10%    2.2308  -0.10%\n"
      "Equal loss: how many times faster than bf16 the run reaches a loss that both reach, the higher of their two final "
      "smoothed losses. Noise: the standard deviation that chance in the losses gives this factor, estimated from the scatter "
      "of the losses around their smooth curves or from two bf16 runs, whichever is larger; step times count as exact.\n"
      "Two bf16 runs on the same batches, with sums in a different order, differ by 0.10% in mean loss over the last tenth of "
      "the steps and by 0.10% on held-out text.\n");
}

TEST(RenderText, RunsWithNamesOfTheirOwnHaveAColumnOfRecipes) {
  const std::vector<report::Run> runs{make_run("low lr", "bf16", 20, 1, 100), make_run("high lr", "fp8_delayed", 20, 1, 100)};
  const std::string text = render_text(compare(runs));
  EXPECT_TRUE(has(text, "run      recipe       tok/s/gpu  faster  final loss")) << text;
  EXPECT_TRUE(has(text, "\nlow lr   bf16               100       -      2.1500")) << text;
}

TEST(RenderText, HugeLossesAreShort) {
  const std::vector<report::Run> runs{make_run("bf16", "bf16", 20, 1, 100), make_run("lost", "bf16", 20, 1e200, 100)};
  const std::string text = render_text(compare(runs));
  EXPECT_TRUE(has(text, "  2.1500e+200  +1.00e+202%  ")) << text;
  EXPECT_FALSE(has(render_html("a title", runs, compare(runs)), "0000000000"));
}

TEST(RenderText, WhatRoundsToZeroHasNoSign) {
  const std::vector<report::Run> runs{make_run("bf16", "bf16", 20, 1, 100), make_run("mxfp8", "mxfp8", 20, 0.99999, 100)};
  EXPECT_TRUE(has(render_text(compare(runs)), "2.1500   0.00%")) << render_text(compare(runs));
}

// Two runs that start from given weights, and one that does not.
std::vector<report::Run> continued_runs() {
  std::vector<report::Run> runs = three_runs();
  runs[1].info.initial_eval_loss = 4;
  runs[2].info.initial_eval_loss = 4.02;
  runs[2].info.initial_eval_loss_bf16 = 4;
  return runs;
}

TEST(Compare, LossesBeforeStep1) {
  EXPECT_FALSE(has_initial_losses(compare(three_runs())));
  const Comparison c = compare(continued_runs());
  EXPECT_TRUE(has_initial_losses(c));
  EXPECT_EQ(c.rows[0].summary.initial_eval_loss, 4);
  EXPECT_EQ(c.rows[1].summary.initial_eval_loss, 4.02);
  EXPECT_EQ(c.rows[1].summary.initial_eval_loss_bf16, 4);
  EXPECT_NEAR(c.rows[1].initial_eval_loss_pct, 0.5, 1e-9);
  for (const std::size_t i : {0, 2}) EXPECT_TRUE(std::isnan(c.rows[i].initial_eval_loss_pct)) << i;
  EXPECT_TRUE(std::isnan(c.rows[2].summary.initial_eval_loss));
}

TEST(RenderText, TheTableOfRunsThatGoOnFromWeights) {
  EXPECT_EQ(
      render_text(compare(continued_runs())),
      "recipe         tok/s/gpu  faster  equal loss  noise  final loss  higher  last tenth  higher  held-out  higher  before "
      "step 1  higher\n"
      "--------------------------------------------------------------------------------------------------------------------------"
      "----------\n"
      "bf16                 100       -           -      -      2.0300       -      2.0314       -    2.2330       -         "
      "4.0000       -\n"
      "fp8_delayed          150  +50.0%       0.88x   5.9%      2.0341  +0.20%      2.0355  +0.20%    2.2375  +0.20%         "
      "4.0200  +0.50%\n"
      "bf16 (repeat)         90  -10.0%       1.07x   6.1%      2.0280  -0.10%      2.0294  -0.10%    2.2308  -0.10%             "
      " -       -\n"
      "before step 1: held-out loss of the weights that a run continues from; higher: compared with BF16.\n"
      "Equal loss: how many times faster than bf16 the run reaches a loss that both reach, the higher of their two final "
      "smoothed losses. Noise: the standard deviation that chance in the losses gives this factor, estimated from the scatter "
      "of the losses around their smooth curves or from two bf16 runs, whichever is larger; step times count as exact.\n"
      "Two bf16 runs on the same batches, with sums in a different order, differ by 0.10% in mean loss over the last tenth of "
      "the steps and by 0.10% on held-out text.\n");
}

TEST(RenderJson, LossesBeforeStep1) {
  const auto rows = nlohmann::json::parse(render_json(compare(continued_runs())))["rows"];
  EXPECT_EQ(rows[0]["initial_eval_loss"], 4);
  EXPECT_EQ(rows[0]["initial_eval_loss_bf16"], nullptr);
  EXPECT_EQ(rows[1]["initial_eval_loss"], 4.02);
  EXPECT_EQ(rows[1]["initial_eval_loss_bf16"], 4);
  EXPECT_NEAR(rows[1]["initial_eval_loss_pct"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(rows[2]["initial_eval_loss"], nullptr);
}

TEST(RenderJson, ParsesAndSaysTheSame) {
  std::vector<report::Run> runs = three_runs();
  runs[2].metrics.back().loss = std::nan("");
  runs[2].info.name = "\xff\"";
  const auto json = nlohmann::json::parse(render_json(compare(runs)));
  EXPECT_EQ(json["baseline"], "bf16");
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][0]["faster_pct"], nullptr);
  EXPECT_NEAR(json["rows"][1]["faster_pct"].get<double>(), 50, 1e-9);
  EXPECT_EQ(json["rows"][1]["final_loss"], nullptr);
  EXPECT_NEAR(json["spread"]["mean_loss_pct"].get<double>(), 0.1, 1e-9);
  EXPECT_EQ(nlohmann::json::parse(render_json(compare({})))["spread"], nullptr);
}

}  // namespace
}  // namespace octet::report
