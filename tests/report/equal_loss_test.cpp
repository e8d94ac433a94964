#include "octet/report/equal_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/report/html.h"
#include "octet/report/summary.h"
#include "report/runs.h"
#include "support/folder.h"

namespace octet::report {
namespace {

// A run whose loss at step k is loss(k) and whose steps take `step_time_s`.
report::Run run_of(std::int64_t steps, double step_time_s, const std::function<double(double)>& loss, std::int64_t log_freq = 1) {
  report::Run run = make_run("run", "bf16", steps, 1, 100);
  for (telemetry::StepMetrics& line : run.metrics) {
    line.loss = loss(static_cast<double>(line.step));
    line.step_time_s = step_time_s;
  }
  std::erase_if(run.metrics, [&](const auto& line) { return line.step % log_freq != 0; });
  return run;
}

EqualLoss equal_loss_of(const report::Run& run, const report::Run& baseline) {
  return equal_loss(LossCurve(run), LossCurve(baseline), nullptr);
}

// 2 + 5 exp(-k / tau) falls to 2 + 5 exp(-steps / tau_slow) of a slower run at step steps * tau / tau_slow.
std::function<double(double)> exponential(double tau) {
  return [tau](double step) { return 2 + 5 * std::exp(-step / tau); };
}

// The value of a weighted line is off by c h^2 S'' / 2, where c is 1 inside of a run and (m2^2 - m1 m3) / (m2 - m1^2) = -0.75 at
// its end; m_i are the moments of half a Gaussian. In steps this is at most h^2 / (2 tau) for each of the two runs, because S'' =
// -S' / tau.
double step_error(double steps, double tau) { return 2 * (steps / 40) * (steps / 40) / (2 * tau); }

TEST(EqualLoss, ExponentialsCrossWhereTheFormulaSays) {
  for (const double tau : {300.0, 400.0, 600.0}) {
    for (const double rate : {0.5, 1.0, 1.5}) {
      constexpr double kSteps = 1000, kSlowTau = 700;
      const report::Run slow = run_of(1000, 0.6, exponential(kSlowTau)), fast = run_of(1000, 0.6 / rate, exponential(tau));
      const double crossing = kSteps * tau / kSlowTau, tolerance = step_error(kSteps, tau) / crossing;
      const EqualLoss against_slow = equal_loss_of(fast, slow), against_fast = equal_loss_of(slow, fast);
      EXPECT_NEAR(against_slow.loss, exponential(kSlowTau)(kSteps), step_error(kSteps, tau) * 5 / kSlowTau);
      EXPECT_NEAR(against_slow.baseline_time_s, 600, 1e-9);
      EXPECT_NEAR(against_slow.time_s, 0.6 / rate * crossing, 0.6 / rate * crossing * tolerance) << tau << " " << rate;
      EXPECT_NEAR(against_slow.speedup, rate * kSlowTau / tau, rate * kSlowTau / tau * tolerance) << tau << " " << rate;
      EXPECT_DOUBLE_EQ(against_fast.speedup, 1 / against_slow.speedup);
      EXPECT_EQ(against_slow.reason, "");
    }
  }
}

TEST(EqualLoss, TheSameCurveTwiceIsTheRatioOfTheRates) {
  const report::Run bf16 = run_of(400, 0.9, exponential(150)), fp8 = run_of(400, 0.6, exponential(150));
  EXPECT_NEAR(equal_loss_of(fp8, bf16).speedup, 1.5, 1e-12);
  EXPECT_NEAR(equal_loss_of(fp8, bf16).noise_pct, 0, 1e-6);
}

TEST(EqualLoss, LinesThatAreNotEveryStepAndOtherNumbersOfSteps) {
  // A straight line has no smoothing error, so interpolation between the lines of every 20th step is exact.
  const auto line = [](double slope) { return [slope](double step) { return 10 - slope * step; }; };
  const report::Run slow = run_of(1000, 2, line(0.004)), fast = run_of(3000, 1, line(0.005), 20);
  const EqualLoss equal = equal_loss_of(fast, slow);  // 6 is reached at step 1000 of the one and 800 of the other
  EXPECT_NEAR(equal.loss, 6, 1e-9);
  EXPECT_NEAR(equal.time_s, 800, 1e-6);
  EXPECT_NEAR(equal.baseline_time_s, 2000, 1e-6);
  EXPECT_NEAR(equal.speedup, 2.5, 1e-8);
}

// A run that was killed after step 60 and went on from step 40, more slowly: steps 41 to 60 stand in its metrics twice.
TEST(EqualLoss, ResumedRunsCountTheTimeOfEachStepOnce) {
  const testing::TemporaryFolder folder;
  std::string lines;
  const auto log = [&](int begin, int end, int seconds) {
    for (int step = begin; step <= end; ++step)
      lines += concat("{\"step\":", step, ",\"loss\":", 10 - 0.05 * step, ",\"step_time_s\":", seconds, "}\n");
  };
  log(1, 60, 1);
  log(41, 100, 3);
  write_file_atomically(folder / "metrics.jsonl", lines);
  const report::Run resumed = read_run(folder.path());
  const report::Run slow = run_of(100, 5, [](double step) { return 10 - 0.04 * step; });
  // The baseline ends at 6, which the resumed run reaches at step 80: 40 steps of a second and 40 of three.
  EXPECT_NEAR(equal_loss_of(resumed, slow).time_s, 40 + 40 * 3, 1e-6);
}

TEST(EqualLoss, AColdFirstStepCountsLikeTheNext) {
  const report::Run warm = run_of(100, 0.5, exponential(30));
  report::Run cold = warm;
  cold.metrics[0].step_time_s = 20;
  EXPECT_NEAR(equal_loss_of(warm, cold).speedup, 1, 1e-12);
  EXPECT_NEAR(equal_loss_of(warm, cold).baseline_time_s, 50, 1e-9);
}

// Both runs went on from the same checkpoint of step 1000 into folders of their own. The first line of each is cold.
TEST(EqualLoss, RunsThatWentOnElsewhereCountTheirOwnSteps) {
  for (const std::int64_t log_freq : {1, 5}) {
    const auto went_on = [&](double step_time_s) {
      report::Run run = run_of(1400, step_time_s, exponential(300), log_freq);
      std::erase_if(run.metrics, [](const auto& line) { return line.step <= 1000; });
      run.metrics[0].step_time_s += 30;
      return run;
    };
    const report::Run bf16 = went_on(1), fp8 = went_on(0.5);
    EXPECT_NEAR(equal_loss_of(fp8, bf16).speedup, 2, 1e-9);
    EXPECT_NEAR(equal_loss_of(fp8, bf16).baseline_time_s, 400, 1e-9);
    EXPECT_NEAR(training_times(fp8).back(), 200 + 30 * static_cast<double>(log_freq), 1e-9);
    // Against a run that began at step 1, the steps that both have count.
    const EqualLoss against_all = equal_loss_of(fp8, run_of(1400, 1, exponential(300), log_freq));
    EXPECT_NEAR(against_all.speedup, 2, 0.01);  // the smoothed losses at the end differ a little
    EXPECT_NEAR(against_all.baseline_time_s, 400, 2);
  }
  // The runs have no steps in common in which both are above their last common loss.
  report::Run late = run_of(1400, 1, exponential(300));
  std::erase_if(late.metrics, [](const auto& line) { return line.step <= 1000; });
  EXPECT_EQ(equal_loss_of(run_of(500, 1, exponential(300)), late).reason,
            "the baseline begins below the last loss of the other one");
  EXPECT_EQ(equal_loss_of(run_of(1400, 1, exponential(100)), late).reason,
            "one of the two runs reaches this loss before the other one begins");
}

TEST(EqualLoss, TheLastTimeThatTheLossComesDownCounts) {
  // Falls below 6 at step 400, rises above it at step 500 and falls below it again at step 700.
  const auto bump = [](double step) {
    return step < 450 ? 10 - 0.01 * step : step < 550 ? 5.5 + 0.01 * (step - 450) : 6.5 - (step - 550) / 300;
  };
  const report::Run slow = run_of(1000, 1, [](double step) { return 10 - 0.004 * step; }), fast = run_of(1000, 1, bump);
  EXPECT_NEAR(equal_loss_of(fast, slow).time_s, 700, 1);
}

std::string reason(const report::Run& run, const report::Run& baseline) {
  const EqualLoss equal = equal_loss_of(run, baseline);
  EXPECT_TRUE(std::isnan(equal.speedup) && std::isnan(equal.noise_pct));
  EXPECT_EQ(equal.noise_from, "");
  return equal.reason;
}

TEST(EqualLoss, SaysWhyThereIsNone) {
  const report::Run good = run_of(100, 1, exponential(40));
  report::Run lost = good, few = run_of(4, 1, exponential(40)), timeless = good;
  lost.metrics.back().loss = NAN;
  for (telemetry::StepMetrics& line : timeless.metrics) line.step_time_s = NAN;
  const report::Run high = run_of(100, 1, [](double step) { return 50 - 0.01 * step; });
  const report::Run rises = run_of(100, 1, [](double step) { return 4 + std::abs(step - 20) / 50; });
  EXPECT_EQ(reason(lost, good), "its last loss is not finite");
  EXPECT_EQ(reason(good, lost), "the baseline's last loss is not finite");
  EXPECT_EQ(reason(good, few), "the baseline has logged fewer than 5 losses");
  EXPECT_EQ(reason(few, good), "it has logged fewer than 5 losses");
  EXPECT_EQ(reason(timeless, good), "its step times are unknown");
  EXPECT_EQ(reason(high, good), "the baseline begins below the last loss of the other one");
  EXPECT_EQ(reason(good, high), "this run begins below the last loss of the other one");
  EXPECT_EQ(reason(rises, good), "the loss of this run rose again to its last value");
  EXPECT_EQ(reason(report::Run{}, good), "its last loss is not finite");
}

TEST(EqualLoss, SkippedStepsAreLeftOutOfTheLossAndCountedInTheTime) {
  const auto line = [](double slope) { return [slope](double step) { return 10 - slope * step; }; };
  const report::Run slow = run_of(1000, 2, line(0.004));
  report::Run fast = run_of(1000, 1, line(0.005));
  for (const std::size_t skipped : {100, 101, 500, 794, 799, 800, 998}) fast.metrics[skipped].loss = NAN;
  EXPECT_NEAR(equal_loss_of(fast, slow).time_s, 800, 1e-6);
}

enum class Batches { same, other };
constexpr int kPairs = 200;

// Makes pairs of runs whose losses have normal noise, and returns {the standard deviation of log(speedup), the noise that
// equal_loss() says, as a root mean square}.
std::pair<double, double> spread_of_many(Batches batches) {
  std::mt19937_64 random(7), of_repeats(8);
  std::normal_distribution<double> normal(0, 0.05), own(0, 0.01);
  double sum = 0, squares = 0, said = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    std::vector<double> batch(201);
    for (double& x : batch) x = normal(random);
    const auto noisy = [&](double tau) {
      return [&, tau](double step) {
        const double shared = batches == Batches::same ? batch[static_cast<std::size_t>(step)] : normal(random);
        return exponential(tau)(step) + shared + own(random);
      };
    };
    const report::Run slow = run_of(200, 1, noisy(100)), fast = run_of(200, 1, noisy(99));
    const EqualLoss equal = equal_loss_of(fast, slow);
    EXPECT_EQ(equal.noise_from, "scatter");
    const LossCurve repeat(run_of(200, 1, [&](double step) { return exponential(100)(step) + normal(of_repeats); }));
    EXPECT_GE(equal_loss(LossCurve(fast), LossCurve(slow), &repeat).noise_pct, equal.noise_pct) << "a repeat hides no scatter";
    const double log = std::log(equal.speedup);
    sum += log;
    squares += log * log;
    said += std::pow(equal.noise_pct / 100, 2);
  }
  const double mean = sum / kPairs;
  return {std::sqrt(squares / kPairs - mean * mean), std::sqrt(said / kPairs)};
}

// A standard deviation from N pairs is known to 1 / sqrt(2 N); the bounds are four of these. The scatter is larger than the
// noise, because it is measured against a fit without the line: by up to 1 / (1 - w), where w is the weight of a line in its own
// fit. At the end of a run w is 4 / (sqrt(2 pi) h) for the value of a line, or 0.32 with h = 5 steps.
TEST(EqualLoss, TheScatterPredictsHowMuchTheSpeedUpVaries) {
  const double known = 4 / std::sqrt(2.0 * kPairs);
  const auto [same, same_said] = spread_of_many(Batches::same);
  const auto [other, other_said] = spread_of_many(Batches::other);
  for (const auto& [varies, says] : {std::pair(same, same_said), std::pair(other, other_said)}) {
    EXPECT_GT(says, (1 - known) * varies);
    EXPECT_LT(says, (1 + known) / (1 - 0.32) * varies);
  }
  // Runs that see the same batches scatter together.
  EXPECT_LT(same, 0.7 * other);
  EXPECT_LT(same_said, 0.7 * other_said);
}

// bf16, a repeat whose loss is higher by 0.01, and an FP8 recipe whose loss is higher by 0.02.
std::vector<report::Run> with_repeat() {
  const auto line = [](double above) { return [above](double step) { return 10 + above - 0.004 * step; }; };
  std::vector<report::Run> runs{run_of(1000, 2, line(0)), run_of(1000, 2.5, line(0.01)), run_of(1000, 1, line(0.02))};
  runs[0].info.name = "bf16";
  runs[1].info.name = "bf16-repeat";
  runs[1].info.repeat_of = "bf16";
  runs[2].info.name = runs[2].info.recipe = "fp8_delayed";
  return runs;
}

TEST(EqualLoss, TheRepeatSetsTheNoise) {
  const Comparison c = compare(with_repeat());
  EXPECT_FALSE(c.rows[0].equal_loss.has_value()) << "the baseline";
  const EqualLoss& fp8 = *c.rows[1].equal_loss;
  // fp8 ends at 6.02, which bf16 has at step 995. A loss of 0.01 is 2.5 steps.
  EXPECT_NEAR(fp8.loss, 6.02, 1e-9);
  EXPECT_NEAR(fp8.speedup, 2 * 0.995, 1e-8);
  EXPECT_EQ(fp8.noise_from, "repeat");
  EXPECT_NEAR(fp8.noise_pct, 100 * 2.5 / 995, 1e-6);
  const EqualLoss& repeat = *c.rows[2].equal_loss;
  EXPECT_NEAR(repeat.speedup, 0.8 * 0.9975, 1e-8);
}

TEST(EqualLoss, OtherNumbersOfRanksAreNotCompared) {
  std::vector<report::Run> runs = with_repeat();
  runs[2].info.processes = 4;
  EXPECT_EQ(compare(runs).rows[1].equal_loss->reason, "the baseline ran on another number of ranks");
}

TEST(EqualLoss, IsInTableReportAndJson) {
  std::vector<report::Run> runs = with_repeat();
  runs.push_back(runs[2]);
  runs.back().info.name = "lost";
  for (telemetry::StepMetrics& line : runs.back().metrics) {
    if (line.step > 900) line.loss = NAN;
  }
  const Comparison c = compare(runs);
  const std::string text = render_text(c), html = render_html("Runs", runs, c);
  EXPECT_TRUE(has(text, "run          recipe       tok/s/gpu  faster  equal loss  noise  final loss")) << text;
  EXPECT_TRUE(has(text, "fp8_delayed  fp8_delayed        100    0.0%       1.99x   0.3%      6.0200")) << text;
  EXPECT_TRUE(has(text,
                  "Equal loss: how many times faster than bf16 the run reaches a loss that both reach, the higher of their two "
                  "final smoothed losses. Noise: the standard deviation that chance in the losses gives this factor, estimated "
                  "from the scatter of the losses around their smooth curves or from two bf16 runs, whichever is larger; step "
                  "times count as exact. lost has "
                  "no time to equal loss: its last loss is not finite.\n"))
      << text;
  EXPECT_TRUE(has(html, "<th>speed-up at<br>equal loss</th>"));
  EXPECT_TRUE(has(html, "<td data-column=\"speed-up at equal loss\">1.99×<small>±0.3%</small></td>")) << html;
  EXPECT_TRUE(has(html, "lost has no time to equal loss"));
  const auto rows = nlohmann::json::parse(render_json(c))["rows"];
  EXPECT_EQ(rows[0]["equal_loss"], nullptr);
  EXPECT_NEAR(rows[1]["equal_loss"]["speedup"].get<double>(), 1.99, 1e-8);
  EXPECT_NEAR(rows[1]["equal_loss"]["loss"].get<double>(), 6.02, 1e-9);
  EXPECT_NEAR(rows[1]["equal_loss"]["baseline_time_s"].get<double>(), 1990, 1e-6);
  EXPECT_EQ(rows[1]["equal_loss"]["noise_from"], "repeat");
  EXPECT_EQ(rows[2]["equal_loss"]["speedup"], nullptr);
  EXPECT_EQ(rows[2]["equal_loss"]["reason"], "its last loss is not finite");
}

TEST(EqualLoss, IsInTheTableOfSeveralNumbersOfRanks) {
  std::vector<report::Run> runs = with_repeat();
  runs.erase(runs.begin() + 1);
  for (const std::size_t i : {0, 1}) {
    runs.push_back(runs[i]);
    runs.back().info.processes = 2;
    for (telemetry::StepMetrics& line : runs.back().metrics) line.step_time_s *= i == 0 ? 1 : 0.5;
  }
  const Comparison c = compare(runs);
  ASSERT_TRUE(c.scales);
  EXPECT_NEAR(c.rows[1].equal_loss->speedup, 1.99, 1e-8);
  EXPECT_NEAR(c.rows[3].equal_loss->speedup, 3.98, 1e-8);
  const std::string text = render_text(c), html = render_html("Runs", runs, c);
  EXPECT_TRUE(has(text, "decrease  faster  equal loss  noise    loss")) << text;
  EXPECT_TRUE(has(text, "3.98x")) << text;
  EXPECT_TRUE(has(html, "3.98×"));
}

TEST(LossCurve, ManyLinesAreThinned) {
  const report::Run slow = run_of(100000, 0.01, exponential(30000)), fast = run_of(100000, 0.01, exponential(20000));
  EXPECT_EQ(LossCurve(slow).smoothed().size(), 1000u);
  EXPECT_NEAR(equal_loss_of(fast, slow).baseline_time_s, 1000, 1e-9) << "up to its last line";
  // A point is the mean of 100 lines, so the crossing is up to 50 steps early: 0.05% of the run.
  EXPECT_NEAR(equal_loss_of(fast, slow).speedup, 1.5, 1.5 * (0.0005 + step_error(100000, 20000) / 66667));
}

// With 1,500 lines every second point stands for one line, and the others for two. The losses of the former lie 0.3 above a
// straight line, so the smoothed loss lies 0.1 above it. It is off by no more than the largest sum of consecutive deviations from
// that mean, 0.2, times the total variation of the weights: twice that of the last line, 4 / (sqrt(2 pi) h), because the weights
// fall below zero and rise again by less than that.
TEST(LossCurve, APointOfSeveralLinesHasTheirWeight) {
  const auto loss = [](double step) { return 20 - 0.004 * step + (std::fmod(step - 1, 3) == 0 ? 0.3 : 0); };
  const double h = 1499.0 / 40, bound = 0.2 * 2 * 4 / (std::sqrt(2 * M_PI) * h);
  ASSERT_LT(bound, 0.02);
  EXPECT_NEAR(LossCurve(run_of(1500, 1, loss)).last_loss(), 20 - 0.004 * 1500 + 0.1, bound);
}

}  // namespace
}  // namespace octet::report
