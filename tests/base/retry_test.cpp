#include "octet/base/retry.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace octet {
namespace {

// Fails with errno `number` so many times and then succeeds.
struct Flaky {
  int number, failures, calls = 0;
  int operator()() {
    if (calls++ < failures) throw SystemError(ExitCode::data, "a: cannot read: because", number);
    return calls;
  }
};

TEST(Retry, GoesOnUntilTheErrorHasPassed) {
  for (const int number : {EIO, ESTALE, EINTR, ETIMEDOUT}) {
    Flaky act{number, 2};
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(retry(60, act), 3);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: a: cannot read: because; trying again for 60 s\n");
  }
}

TEST(Retry, OtherErrorsAreNotTriedAgain) {
  for (const int number : {EACCES, ENOENT, ENOSPC, EROFS}) {
    Flaky act{number, 1};
    EXPECT_THROW(retry(60, std::ref(act)), SystemError);
    EXPECT_EQ(act.calls, 1);
  }
  Flaky never{EIO, 1};
  EXPECT_THROW(retry(0, std::ref(never)), SystemError);
  EXPECT_EQ(never.calls, 1);
}

TEST(Retry, GivesUpAfterItsTimeAndSaysSo) {
  Flaky act{EIO, 1'000'000};
  ::testing::internal::CaptureStderr();
  try {
    retry(0.12, std::ref(act));
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "a: cannot read: because, also after 0.12 s of trying again");
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.number(), EIO);
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_GE(act.calls, 3);
}

}  // namespace
}  // namespace octet
