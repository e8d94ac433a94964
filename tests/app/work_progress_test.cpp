#include "octet/app/work_progress.h"

#include <gtest/gtest.h>

namespace octet::app {
namespace {

TEST(WorkProgress, SaysHowMuchIsLeft) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  EXPECT_EQ(progress_line("out", 3 * kGiB, 12 * kGiB, 20), "out  25%  3.00 GiB of 12.0 GiB  eta 1m00s");
  EXPECT_EQ(progress_line("out", 999 * kGiB, 1000 * kGiB, 999), "out  99%  999 GiB of 1000 GiB  eta 1.0s");
  EXPECT_EQ(progress_line("out", kGiB, kGiB, 5), "out  100%  1.00 GiB of 1.00 GiB  eta 0.0s");
  EXPECT_EQ(progress_line("searching", 300, 1200, 20, "meshes"), "searching  25%  300 of 1,200 meshes  eta 1m00s");
}

// Work that takes only a moment shows no progress.
TEST(WorkProgress, SaysNothingOfAMoment) {
  ::testing::internal::CaptureStderr();
  {
    WorkProgress progress("out");
    for (int i = 0; i <= 100; ++i) progress(i, 100);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace octet::app
