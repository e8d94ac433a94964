#include "octet/train/anomaly.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet::train {
namespace {

using Verdict = Anomaly::Verdict;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void feed(Anomaly& anomaly, int count, double loss) {
  for (int i = 0; i < count; ++i) ASSERT_EQ(anomaly.observe(loss, false), Verdict::fine) << "loss " << i;
}

TEST(Anomaly, CountsSkippedSteps) {
  Anomaly anomaly;
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped);
  EXPECT_EQ(anomaly.observe(2.0, false), Verdict::fine);
  EXPECT_EQ(anomaly.observe(2.0, true), Verdict::skipped);  // the gradient is not finite although the loss is
  EXPECT_EQ(anomaly.skipped_steps(), 2);
}

// A step without a token to train on neither ends a row of others nor belongs to it.
TEST(Anomaly, CountsEmptySteps) {
  Anomaly anomaly;
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  anomaly.observe_empty();
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::not_finite);
  EXPECT_EQ(anomaly.empty_steps(), 1);
  EXPECT_EQ(anomaly.skipped_steps(), 10);
  Anomaly restored;
  restored.restore(anomaly.state());
  EXPECT_EQ(restored.empty_steps(), 1);
}

TEST(Anomaly, TenSkipsInARowGoBack) {
  Anomaly anomaly;
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(2.0, false), Verdict::fine);  // ends the row of skipped steps
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::not_finite);
  EXPECT_EQ(anomaly.reason(), "10 steps in a row had a loss or gradient that is not finite");
  EXPECT_EQ(anomaly.skipped_steps(), 19);
  // The count starts again after a rollback.
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::not_finite);
}

Anomaly by_factor(double factor) { return Anomaly({.kind = SpikeRule::Kind::factor, .factor = factor}); }

TEST(Anomaly, ReadsItsRule) {
  EXPECT_EQ(parse_spike("auto")->kind, SpikeRule::Kind::automatic);
  EXPECT_EQ(parse_spike("off")->kind, SpikeRule::Kind::off);
  EXPECT_EQ(parse_spike("2")->factor, 2.0);
  EXPECT_EQ(parse_spike("1.5e1")->factor, 15.0);
  for (const char* text : {"", "on", "2x", " 2", "1", "0.5", "-3", "nan", "inf", "1e31"}) EXPECT_FALSE(parse_spike(text)) << text;
}

TEST(Anomaly, AFactorJudgesALossByTheMedian) {
  Anomaly anomaly = by_factor(2);
  feed(anomaly, 19, 3.0);
  EXPECT_EQ(anomaly.observe(100.0, false), Verdict::fine) << "nineteen losses are too few, and it does not move their median";
  EXPECT_EQ(anomaly.observe(6.0, false), Verdict::fine) << "twice is not above twice";
  EXPECT_EQ(anomaly.observe(6.1, false), Verdict::spike);
  EXPECT_EQ(anomaly.reason(), "loss 6.1 is above 2 times 3, the median of the last 21 steps");
  EXPECT_EQ(anomaly.steps_of_reason(), 1);
  EXPECT_EQ(anomaly.observe(6.0, false), Verdict::fine) << "the spike itself must not enter the window";
  EXPECT_EQ(anomaly.skipped_steps(), 0);
}

TEST(Anomaly, TheWindowIsTheLastHundred) {
  Anomaly anomaly = by_factor(2);
  feed(anomaly, 60, 8.0);
  feed(anomaly, 49, 5.0);
  EXPECT_EQ(anomaly.observe(15.9, false), Verdict::fine);  // of a hundred, 51 are 8
  feed(anomaly, 3, 5.0);
  EXPECT_EQ(anomaly.observe(10.1, false), Verdict::spike);
}

// What the rule is for: losses of text and of code by turns, and a batch now and then that is like no other.
TEST(Anomaly, UnevenDataIsNoSpike) {
  for (const SpikeRule::Kind kind : {SpikeRule::Kind::automatic, SpikeRule::Kind::off}) {
    Anomaly anomaly({.kind = kind});
    for (int i = 0; i < 3000; ++i) {
      const double loss = i % 97 == 50 || i % 97 == 51 ? 40.0 : i % 5 < 3 ? 1.0 + 0.01 * std::sin(i) : 3.2;
      ASSERT_EQ(anomaly.observe(loss, false), Verdict::fine) << i;
    }
  }
}

// From its first losses on, a model that learns is no spike, and neither is one that stands still.
TEST(Anomaly, LearningIsNoSpike) {
  Anomaly anomaly;
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(anomaly.observe(2.0 + 9.0 / (1.0 + i / 10.0) + 0.05 * std::sin(1.7 * i), false), Verdict::fine);
  Anomaly still;
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(still.observe(3.0 + 1e-3 * std::sin(1.7 * i), false), Verdict::fine);
}

TEST(Anomaly, ThreeHighLossesInARowAreASpike) {
  Anomaly anomaly;
  for (int i = 0; i < 200; ++i) anomaly.observe(2.0 + (i % 10 == 0 ? 0.1 : 0.0), false);
  // The 90th percentile is 2.1, so the limit is 2.6.
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(anomaly.observe(2.7, false), Verdict::fine);
    EXPECT_EQ(anomaly.observe(2.7, false), Verdict::fine);
    EXPECT_EQ(anomaly.observe(2.0, false), Verdict::fine) << "two were the data's";
  }
  EXPECT_EQ(anomaly.observe(2.7, false), Verdict::fine);
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << "a skipped step says nothing";
  EXPECT_EQ(anomaly.observe(2.7, false), Verdict::fine);
  EXPECT_EQ(anomaly.observe(5.0, false), Verdict::spike);
  EXPECT_EQ(anomaly.steps_of_reason(), 4) << "with the skipped one";
  EXPECT_EQ(anomaly.reason(),
            "loss 5, the last of 3 in a row, is above 2 + 6 x 0.1, the median and 6 times the spread of the last 100 steps");
}

// A checkpoint from between them has learnt from the first one, so a rollback must know how many steps they span.
TEST(Anomaly, AReasonSpansTheStepsBetweenHighLosses) {
  Anomaly anomaly;
  feed(anomaly, 30, 2.0);
  feed(anomaly, 1, 9.0);
  anomaly.observe(kNan, true);
  for (int i = 0; i < 5; ++i) anomaly.observe_empty();
  nlohmann::json state = anomaly.state();
  feed(anomaly, 1, 9.0);
  EXPECT_EQ(anomaly.observe(9.0, false), Verdict::spike);
  EXPECT_EQ(anomaly.steps_of_reason(), 9);
  // A resume knows it too. A checkpoint of an earlier version says nothing about the steps between.
  for (const std::int64_t steps : {9, 3}) {
    Anomaly restored;
    restored.restore(nlohmann::json::parse(state.dump()));
    feed(restored, 1, 9.0);
    EXPECT_EQ(restored.observe(9.0, false), Verdict::spike);
    EXPECT_EQ(restored.steps_of_reason(), steps);
    state.erase("high_steps");
  }
  // Steps without a loss before the first high one do not count, nor do earlier high ones that were the data's.
  feed(anomaly, 1, 9.0);
  feed(anomaly, 1, 2.0);
  anomaly.observe_empty();
  feed(anomaly, 2, 9.0);
  EXPECT_EQ(anomaly.observe(9.0, false), Verdict::spike);
  EXPECT_EQ(anomaly.steps_of_reason(), 3);
}

TEST(Anomaly, ANewWindowForgetsHighLosses) {
  Anomaly anomaly;
  feed(anomaly, 30, 2.0);
  feed(anomaly, 2, 9.0);
  anomaly.begin_window();
  feed(anomaly, 20, 5.0);
  feed(anomaly, 2, 9.0);
  EXPECT_EQ(anomaly.observe(9.0, false), Verdict::spike);
  EXPECT_EQ(anomaly.steps_of_reason(), 3);
}

TEST(Anomaly, TheFirstLossesCannotSpike) {
  Anomaly anomaly;
  feed(anomaly, 10, 1.0);
  feed(anomaly, 9, 100.0);
  feed(anomaly, 1, 1.0);
}

TEST(Anomaly, OffSeesNone) {
  Anomaly anomaly({.kind = SpikeRule::Kind::off});
  feed(anomaly, 100, 1.0);
  feed(anomaly, 100, 1e9);
}

TEST(Anomaly, AThousandGoodStepsMakeUpForARollback) {
  Anomaly anomaly;
  int forgiven = 0;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      anomaly.observe(2.0, false);
      forgiven += anomaly.forgives();
    }
  };
  run(999);
  EXPECT_EQ(forgiven, 0);
  run(1);
  EXPECT_EQ(forgiven, 1);
  run(999);
  anomaly.observe(kNan, true);
  run(999);
  EXPECT_EQ(forgiven, 1) << "a skipped step begins the count anew";
  Anomaly restored;
  restored.restore(nlohmann::json::parse(anomaly.state().dump()));
  restored.observe(2.0, false);
  EXPECT_TRUE(restored.forgives());
  anomaly.begin_row();
  run(999);
  EXPECT_EQ(forgiven, 1);
}

TEST(Anomaly, GoingBackIntoARowBeginsItAnew) {
  Anomaly before;
  for (int i = 0; i < 8; ++i) before.observe(kNan, true);
  Anomaly after;
  after.restore(before.state());
  after.begin_row();
  EXPECT_EQ(after.skipped_steps(), 8);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(after.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(after.observe(kNan, true), Verdict::not_finite);
}

TEST(Anomaly, RestoredItGoesOnAlike) {
  Anomaly before;
  for (int i = 0; i < 130; ++i) before.observe(3.0 + std::sin(i), false);
  for (int i = 0; i < 4; ++i) before.observe(kNan, true);
  Anomaly after;
  after.restore(nlohmann::json::parse(before.state().dump()));
  EXPECT_EQ(after.state(), before.state());
  EXPECT_EQ(after.skipped_steps(), 4);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(after.observe(kNan, true), before.observe(kNan, true));
  EXPECT_EQ(after.observe(kNan, true), Verdict::not_finite);
  for (const double loss : {5.0, 9.9, 10.1, 19.0, 20.0}) EXPECT_EQ(after.observe(loss, false), before.observe(loss, false)) << loss;
  EXPECT_EQ(after.state()["losses"], before.state()["losses"]);
  // Amid high losses, too.
  Anomaly high;
  for (int i = 0; i < 30; ++i) high.observe(2.0, false);
  high.observe(9.0, false);
  high.observe(9.0, false);
  Anomaly resumed;
  resumed.restore(nlohmann::json::parse(high.state().dump()));
  EXPECT_EQ(resumed.observe(9.0, false), Verdict::spike);
}

}  // namespace
}  // namespace octet::train
