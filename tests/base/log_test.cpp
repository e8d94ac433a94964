#include "octet/base/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace octet {
namespace {

std::string said(Log log) {
  ::testing::internal::CaptureStderr();
  set_log(log);
  log_info("info");
  log_warning("own");
  log_shared_warning("shared");
  set_log(Log::all);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, SaysWhatItIsToldTo) {
  EXPECT_EQ(said(Log::all), "info\nwarning: own\nwarning: shared\n");
  EXPECT_EQ(said(Log::warnings), "warning: own\nwarning: shared\n");
  EXPECT_EQ(said(Log::own_warnings), "warning: own\n");
}

TEST(Log, WritesOneLineWhateverAFileIsCalled) {
  ::testing::internal::CaptureStderr();
  log_warning("a\nwarning: b.txt: ends early");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: a\\nwarning: b.txt: ends early\n");
}

TEST(Log, BeginsWithTheTimeOfTheLine) {
  set_log_time(LogTime::utc);
  const std::string lines = said(Log::all);
  set_log_time(LogTime::none);
  const std::string time = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )";
  EXPECT_TRUE(std::regex_match(lines, std::regex(time + "info\n" + time + "warning: own\n" + time + "warning: shared\n")))
      << lines;
}

}  // namespace
}  // namespace octet
