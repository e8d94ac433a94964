#include "octet/app/run_status.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "octet/base/file.h"
#include "octet/telemetry/attempts.h"
#include "support/folder.h"

namespace octet::app {
namespace {

class RunStatusCode : public ::testing::Test {
 protected:
  void attempt(std::int64_t number, const std::string& ended, int code) const {
    telemetry::Attempts(folder_.path())
        .write({.number = number, .job = "job", .started = "2026-01-01T00:00:00Z", .ended = ended, .code = code});
  }
  void run_ended(const std::string& when, int code) const {
    write_file_atomically(folder_ / "run.json",
                          R"({"name": "a", "steps": 10, "ended": ")" + when + R"(", "code": )" + std::to_string(code) + "}");
  }
  std::optional<int> code() const { return status_of(folder_.path()).code; }

  const testing::TemporaryFolder folder_;
};

TEST_F(RunStatusCode, IsThatOfTheNewestEndThatIsRecorded) {
  run_ended("2026-01-01T00:01:00Z", 79);
  EXPECT_EQ(code(), 79) << "no supervisor";
  std::filesystem::create_directories(folder_ / "attempts");
  attempt(1, "2026-01-01T00:01:05Z", 134);
  EXPECT_EQ(code(), 134) << "the supervisor knows of the rank that failed first";
  attempt(2, "", 0);
  EXPECT_EQ(code(), 134) << "the second attempt has not ended";
  run_ended("2026-01-01T00:02:00Z", 77);
  EXPECT_EQ(code(), 77) << "its supervisor was killed before it recorded this end";
  run_ended("2026-01-01T00:03:00Z", -1);
  EXPECT_EQ(code(), std::nullopt) << "nobody has recorded the code of this end";
}

// Rank 0 ran on a host whose clock is ahead of the coordinator's.
TEST_F(RunStatusCode, DependsOnNoClockWithinAJob) {
  const auto ran_in = [&](std::int64_t number, int code) {
    write_file_atomically(folder_ / "run.json",
                          R"({"name": "a", "steps": 10, "job": "job", "ended": "2026-01-01T00:02:00Z", "attempt": )" +
                              std::to_string(number) + R"(, "code": )" + std::to_string(code) + "}");
  };
  std::filesystem::create_directories(folder_ / "attempts");
  attempt(1, "2026-01-01T00:01:05Z", 137);
  ran_in(1, 78);
  EXPECT_EQ(code(), 137) << "the supervisor knows of the rank that failed first";
  attempt(2, "", 0);
  ran_in(2, 77);
  EXPECT_EQ(code(), 77) << "its supervisor was killed before it recorded this end";
}

// The clock of a file server is ahead.
TEST_F(RunStatusCode, AFileOfTheFutureIsNew) {
  run_ended("2026-01-01T00:01:00Z", 0);
  write_file_atomically(folder_ / "remote.json", R"({"url": "s3://bucket", "step": 4})");
  std::filesystem::last_write_time(folder_ / "remote.json",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(status_of(folder_.path()).remote_age_s, 0);
}

}  // namespace
}  // namespace octet::app
