#include "octet/base/median.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octet {
namespace {

TEST(Median, OfOddAndEvenNumbers) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(lower_median({3, 1, 2}), 2);
  EXPECT_EQ(lower_median({4, 1, 3, 2}), 2);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(lower_median({})));
}

}  // namespace
}  // namespace octet
