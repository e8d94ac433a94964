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

TEST(Anomaly, TenSkipsInARowGoBack) {
  Anomaly anomaly;
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(2.0, false), Verdict::fine);  // ends the row of skipped steps
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::roll_back);
  EXPECT_EQ(anomaly.reason(), "10 steps in a row had a loss or gradient that is not finite");
  EXPECT_EQ(anomaly.skipped_steps(), 19);
  // The count starts again after a rollback.
  for (int i = 0; i < 9; ++i) EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::roll_back);
}

TEST(Anomaly, ALossAboveTwiceTheMeanGoesBack) {
  Anomaly anomaly;
  feed(anomaly, 10, 3.0);
  EXPECT_EQ(anomaly.observe(6.0, false), Verdict::fine) << "twice is not above twice";
  EXPECT_EQ(anomaly.observe(6.6, false), Verdict::roll_back);  // the mean is 36/11
  EXPECT_EQ(anomaly.reason(), "loss 6.6 is above 2 times 3.27273, the mean of the last 11 steps");
  EXPECT_EQ(anomaly.observe(6.5, false), Verdict::fine) << "the spike itself must not enter the mean";
  EXPECT_EQ(anomaly.skipped_steps(), 0);
}

TEST(Anomaly, TheFirstLossesCannotSpike) {
  Anomaly anomaly;
  feed(anomaly, 9, 1.0);
  EXPECT_EQ(anomaly.observe(100.0, false), Verdict::fine);  // nine losses are too few for a mean
  EXPECT_EQ(anomaly.observe(30.0, false), Verdict::roll_back);
}

TEST(Anomaly, TheMeanIsOfTheLastHundred) {
  Anomaly anomaly;
  feed(anomaly, 50, 8.0);
  feed(anomaly, 50, 5.0);
  EXPECT_EQ(anomaly.observe(12.9, false), Verdict::fine);  // the mean is 6.5
  feed(anomaly, 50, 5.0);                                  // no eights in the window: (12.9 + 99 * 5) / 100 = 5.079
  EXPECT_EQ(anomaly.observe(10.2, false), Verdict::roll_back);
  EXPECT_EQ(anomaly.observe(10.1, false), Verdict::fine);
}

TEST(Anomaly, SkippedStepsDoNotEnterTheMean) {
  Anomaly anomaly;
  feed(anomaly, 10, 1.0);
  EXPECT_EQ(anomaly.observe(1e30, true), Verdict::skipped);
  EXPECT_EQ(anomaly.observe(kNan, true), Verdict::skipped);
  EXPECT_EQ(anomaly.observe(2.1, false), Verdict::roll_back);
}

TEST(Anomaly, GoingBackIntoARowBeginsItAnew) {
  Anomaly before;
  for (int i = 0; i < 8; ++i) before.observe(kNan, true);
  Anomaly after;
  after.restore(before.state());
  after.begin_row();
  EXPECT_EQ(after.skipped_steps(), 8);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(after.observe(kNan, true), Verdict::skipped) << i;
  EXPECT_EQ(after.observe(kNan, true), Verdict::roll_back);
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
  EXPECT_EQ(after.observe(kNan, true), Verdict::roll_back);
  for (const double loss : {5.0, 5.9, 6.01, 6.1, 7.0}) EXPECT_EQ(after.observe(loss, false), before.observe(loss, false)) << loss;
}

}  // namespace
}  // namespace octet::train
