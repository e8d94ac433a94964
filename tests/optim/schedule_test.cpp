#include "octet/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "octet/base/require.h"
#include "support/errors.h"

namespace octet::optim {
namespace {

// Each result takes a handful of F64 operations on numbers that are at most the peak.
constexpr double kTolerance = 8 * 0x1p-53;

TEST(Schedule, WarmsUpFromZero) {
  const Schedule schedule{.lr = 0.4, .steps = 100, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 0.4);
  EXPECT_LT(learning_rate(schedule, 5), 0.4);
}

TEST(Schedule, CosineEndsAtItsFloor) {
  const Schedule schedule{.lr = 1.0, .steps = 24, .warmup_steps = 4, .decay = Decay::cosine, .min_lr_factor = 0.2};
  EXPECT_NEAR(learning_rate(schedule, 14), 0.6, kTolerance);  // half way, at the mean of peak and floor
  EXPECT_NEAR(learning_rate(schedule, 9), 0.2 + 0.8 * (2 + std::sqrt(2.0)) / 4, kTolerance);  // a quarter of the way
  EXPECT_NEAR(learning_rate(schedule, 24), 0.2, kTolerance);
  EXPECT_EQ(learning_rate(schedule, 1000), learning_rate(schedule, 24));
}

TEST(Schedule, LinearIsALine) {
  const Schedule schedule{.lr = 1.0, .steps = 10, .warmup_steps = 0, .decay = Decay::linear, .min_lr_factor = 0.5};
  EXPECT_NEAR(learning_rate(schedule, 1), 0.95, kTolerance);
  EXPECT_NEAR(learning_rate(schedule, 5), 0.75, kTolerance);
  EXPECT_NEAR(learning_rate(schedule, 10), 0.5, kTolerance);
}

TEST(Schedule, WsdDecaysOverTheLastFifth) {
  const Schedule schedule{.lr = 2.0, .steps = 110, .warmup_steps = 10, .decay = Decay::wsd, .min_lr_factor = 0.1};
  EXPECT_EQ(learning_rate(schedule, 11), 2.0);
  EXPECT_EQ(learning_rate(schedule, 90), 2.0);
  // The rate falls from 2 to 0.2 in 20 steps.
  EXPECT_NEAR(learning_rate(schedule, 91), 2.0 - 1.8 / 20, 16 * kTolerance);
  EXPECT_NEAR(learning_rate(schedule, 100), 1.1, 16 * kTolerance);
  EXPECT_NEAR(learning_rate(schedule, 110), 0.2, 16 * kTolerance);
}

TEST(Schedule, ConstantStays) {
  const Schedule schedule{.lr = 0.3, .steps = 10, .warmup_steps = 2, .decay = Decay::constant, .min_lr_factor = 0.0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.15);
  EXPECT_EQ(learning_rate(schedule, 3), 0.3);
  EXPECT_EQ(learning_rate(schedule, 10), 0.3);
}

TEST(Schedule, ARunOfWarmUpAlone) {
  const Schedule schedule{.lr = 1.0, .steps = 3, .warmup_steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(Schedule{.lr = 1.0, .steps = 5, .warmup_steps = 5}, 5), 1.0);
  EXPECT_THROW(learning_rate(schedule, 0), Error);
}

TEST(Schedule, NamesAreParsedAndSuggested) {
  EXPECT_EQ(parse_decay("cosine"), Decay::cosine);
  EXPECT_EQ(parse_decay("linear"), Decay::linear);
  EXPECT_EQ(parse_decay("wsd"), Decay::wsd);
  EXPECT_EQ(parse_decay("constant"), Decay::constant);
  const std::string error = testing::error_of(ExitCode::config, [] { parse_decay("cosin"); });
  EXPECT_TRUE(testing::contains(error, "'cosin'"));
  EXPECT_TRUE(testing::contains(error, "did you mean cosine?"));
}

}  // namespace
}  // namespace octet::optim
