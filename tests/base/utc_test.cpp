#include "octet/base/utc.h"

#include <gtest/gtest.h>

#include <ctime>

namespace octet {
namespace {

TEST(Utc, ReadsWhatItWrites) {
  const double before = static_cast<double>(std::time(nullptr)), read = seconds_of_utc(utc_now()).value_or(0);
  EXPECT_GE(read, before);
  EXPECT_LE(read, before + 2);
  EXPECT_EQ(seconds_of_utc("1970-01-01T00:00:00Z"), 0.0);
  EXPECT_EQ(seconds_of_utc("2000-02-29T12:00:01Z"), 951825601.0);
}

TEST(Utc, RefusesWhatIsNoTime) {
  for (const char* text : {"", "later", "2026-11-25", "2026-11-25T10:00:00", "2026-11-25T10:00:00Z ", "2026-13-25T10:00:00Z"})
    EXPECT_FALSE(seconds_of_utc(text)) << text;
}

}  // namespace
}  // namespace octet
