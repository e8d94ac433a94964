#include "octet/base/require.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/errors.h"

namespace octet {
namespace {

TEST(Require, SaysValueFileAndLine) {
  const int line = __LINE__ + 2;
  const std::string text =
      testing::error_of(ExitCode::internal, [] { require(1 + 1 == 3, "rmsnorm: D must be a multiple of ", 8, ", got ", 7); });
  EXPECT_EQ(text.find("rmsnorm: D must be a multiple of 8, got 7 ["), 0u) << text;
  EXPECT_TRUE(testing::contains(text, "require_test.cpp:" + std::to_string(line) + "]"));
}

TEST(Require, ADemandIsTheWholeMessage) {
  EXPECT_EQ(testing::error_of(ExitCode::data, [] { demand(false, ExitCode::data, "corpus.idx", ": ", 12, " bytes"); }),
            "corpus.idx: 12 bytes");
  EXPECT_NO_THROW(demand(true, ExitCode::data, "never"));
  EXPECT_NO_THROW(require(true, "never"));
}

TEST(Joined, PutsNothingBeforeTheFirstItem) {
  EXPECT_EQ(joined(std::vector<std::string>{"", "b", "c"}), ", b, c");
  EXPECT_EQ(joined(std::vector<int>{7}, " | "), "7");
  EXPECT_EQ(joined(std::vector<int>{}), "");
}

TEST(Require, ExitCodesAreTheContract) {
  EXPECT_EQ(static_cast<int>(ExitCode::done), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::internal), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::config), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::does_not_fit), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::preempted), 75);
  EXPECT_EQ(static_cast<int>(ExitCode::data), 76);
  EXPECT_EQ(static_cast<int>(ExitCode::not_finite), 77);
  EXPECT_EQ(static_cast<int>(ExitCode::peer), 78);
  EXPECT_EQ(static_cast<int>(ExitCode::interrupted), 130);
}

}  // namespace
}  // namespace octet
