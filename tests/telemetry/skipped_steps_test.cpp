#include "octet/telemetry/skipped_steps.h"

#include <gtest/gtest.h>

namespace octet::telemetry {
namespace {

TEST(SkippedSteps, MostAreMoreThanHalf) {
  EXPECT_FALSE(skipped_most(0, 0));
  EXPECT_FALSE(skipped_most(3, 6));
  EXPECT_FALSE(skipped_most(3, 7));
  EXPECT_TRUE(skipped_most(4, 7));
  EXPECT_TRUE(skipped_most(1, 1));
}

TEST(SkippedSteps, TheSentenceCounts) {
  const auto begins = [](const std::string& text) { return text.substr(0, text.find(" had a loss")) + text.substr(text.find(" and")); };
  EXPECT_EQ(begins(text_of_skipped(1200, 5000)), "1,200 of 5,000 steps and were skipped");
  EXPECT_EQ(begins(text_of_skipped(1, 5)), "1 of 5 steps and was skipped");
  EXPECT_EQ(begins(text_of_skipped(6, 6)), "all 6 steps and were skipped");
  EXPECT_EQ(begins(text_of_skipped(1, 1)), "the only step and was skipped");
  EXPECT_EQ(text_of_empty(3, 1000), "3 of 1,000 steps had no token to train on and were skipped");
}

}  // namespace
}  // namespace octet::telemetry
