#include "octet/train/expert_watch.h"

#include <gtest/gtest.h>

namespace octet::train {
namespace {

using telemetry::ExpertSample;

std::vector<std::string> see(ExpertWatch& watch, std::int64_t step, std::vector<std::int64_t> chosen,
                             const std::string& layer = "a") {
  const ExpertSample sample{.step = step, .layer = layer, .chosen = std::move(chosen)};
  return watch.observe(std::span(&sample, 1));
}

// With 4 experts and 400 choices, a fair share is 100.
TEST(ExpertWatch, WarnsOnceOfExpertsThatStarveInFiveSamples) {
  ExpertWatch watch;
  for (int i = 1; i < ExpertWatch::kSamples; ++i) EXPECT_TRUE(see(watch, i, {200, 182, 9, 9}).empty());
  const std::vector<std::string> said = see(watch, 5, {200, 182, 9, 9});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0],
            "step 5: a: experts 2, 3 starve: less than 0.1 of a fair share of the tokens in 5 samples in a row. A larger "
            "model.router_aux_loss_coef spreads tokens more evenly, or a model.router_bias_update_rate");
  for (int i = 6; i < 20; ++i) EXPECT_TRUE(see(watch, i, {200, 182, 9, 9}).empty());
}

TEST(ExpertWatch, AFairSampleBeginsTheCountAnew) {
  ExpertWatch watch;
  for (int i = 1; i < 40; ++i) {
    const bool fair = i % ExpertWatch::kSamples == 0;
    EXPECT_TRUE(see(watch, i, fair ? std::vector<std::int64_t>{300, 86, 14} : std::vector<std::int64_t>{399, 0, 1}).empty()) << i;
  }
  ExpertWatch just_enough;  // a tenth of a fair share is not less than a tenth
  for (int i = 1; i < 40; ++i) EXPECT_TRUE(see(just_enough, i, {180, 200, 10, 10}).empty());
}

TEST(ExpertWatch, CountsEachMixtureByItself) {
  ExpertWatch watch;
  for (int i = 1; i < ExpertWatch::kSamples; ++i) {
    EXPECT_TRUE(see(watch, i, {0, 100}, "a").empty());
    EXPECT_TRUE(see(watch, i, {100, 0}, "b").empty());
  }
  EXPECT_EQ(see(watch, 5, {0, 100}, "a").at(0).substr(0, 28), "step 5: a: expert 0 starves:");
  EXPECT_EQ(see(watch, 5, {100, 0}, "b").at(0).substr(0, 28), "step 5: b: expert 1 starves:");
  EXPECT_TRUE(see(watch, 6, {0, 0}, "c").empty()) << "a step without tokens";
}

}  // namespace
}  // namespace octet::train
