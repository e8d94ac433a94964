#include "octet/base/log.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace octet
