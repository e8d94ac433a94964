#include "octet/app/run_status.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/telemetry/attempts.h"
#include "support/folder.h"

namespace octet::app {
namespace {

class RunStatusCode : public ::testing::Test {
 protected:
  void attempt(std::int64_t number, const std::string& ended, int code, const std::string& job = "job") const {
    std::filesystem::create_directories(folder_ / "attempts");
    telemetry::Attempts(folder_.path())
        .write({.number = number, .job = job, .started = "2026-01-01T00:00:00Z", .ended = ended, .code = code});
  }
  void run_ended(const std::string& when, int code) const {
    write_file_atomically(folder_ / "run.json",
                          R"({"name": "a", "steps": 10, "ended": ")" + when + R"(", "code": )" + std::to_string(code) + "}");
  }
  RunState state() const { return status_of(folder_.path()).state; }
  std::optional<int> code() const { return status_of(folder_.path()).code; }
  std::vector<std::int64_t> numbers() const {
    std::vector<std::int64_t> result;
    for (const telemetry::Attempt& attempt : status_of(folder_.path()).attempts) result.push_back(attempt.number);
    return result;
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(RunStatusCode, IsThatOfTheNewestEndThatIsRecorded) {
  run_ended("2026-01-01T00:01:00Z", 79);
  EXPECT_EQ(code(), 79) << "no supervisor";
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
  attempt(1, "2026-01-01T00:01:05Z", 137);
  ran_in(1, 78);
  EXPECT_EQ(code(), 137) << "the supervisor knows of the rank that failed first";
  attempt(2, "", 0);
  ran_in(2, 77);
  EXPECT_EQ(code(), 77) << "its supervisor was killed before it recorded this end";
}

// A process has trained on after the supervised job and was killed, while the clock was two hours back. The job's last attempt
// had the lock, so this one is younger.
TEST_F(RunStatusCode, DependsOnNoClockForALockThatWasLeft) {
  telemetry::Attempt last{
      .number = 1, .job = "job", .started = "2026-01-01T03:00:00Z", .ended = "2026-01-01T03:01:00Z", .code = 75};
  const auto write = [&] {
    std::filesystem::create_directories(folder_ / "attempts");
    telemetry::Attempts(folder_.path()).write(last);
  };
  const ProcessIdentity me = ProcessIdentity::mine();
  write_file_atomically(
      folder_ / "run.lock",
      concat(R"({"host":")", me.host, R"(","machine":")", me.machine, R"(","boot":")", me.boot, R"(","pid_namespace":")",
             me.pid_namespace, R"(","pid":)", me.pid, R"(,"start_ticks":)", me.start_ticks + 1,
             R"(,"run":"a","since":"2026-01-01T01:02:00Z","job":"","attempt":0,"counter":9})"));
  write();
  EXPECT_EQ(state(), RunState::ended) << "the attempt may have ended before it looked at the lock of a run before it";
  last.seconds["loading"] = 0.5;
  write();
  EXPECT_EQ(state(), RunState::vanished);
}

TEST_F(RunStatusCode, LeavesOutAStartThatWasRefused) {
  attempt(1, "2026-01-01T00:01:00Z", 2, "a");
  EXPECT_EQ(code(), 2) << "nothing else is known";
  EXPECT_EQ(numbers(), std::vector<std::int64_t>{1});
  EXPECT_EQ(state(), RunState::ended);
  std::filesystem::create_directories(folder_ / "checkpoints/step-00000010");
  write_file_atomically(folder_ / "checkpoints/step-00000010/manifest.json", "{}");
  std::filesystem::create_directories(folder_ / "model");
  write_file_atomically(folder_ / "model/config.json", "{}");
  run_ended("2026-01-01T00:01:00Z", 0);
  EXPECT_EQ(code(), 0) << "in the same second";
  EXPECT_EQ(state(), RunState::done);
  attempt(2, "2026-01-01T00:02:00Z", 0, "b");
  attempt(3, "2026-01-01T00:02:00Z", 2, "c");
  EXPECT_EQ(code(), 0);
  EXPECT_EQ(state(), RunState::done);
  EXPECT_EQ(numbers(), std::vector<std::int64_t>{2});
  attempt(4, "2026-01-01T00:03:00Z", 137, "d");
  attempt(5, "2026-01-01T00:04:00Z", 2, "d");
  EXPECT_EQ(code(), 2) << "a restart";
  EXPECT_EQ(state(), RunState::ended);
  EXPECT_EQ(numbers(), (std::vector<std::int64_t>{2, 4, 5}));
  attempt(6, "", 0, "e");
  attempt(7, "2026-01-01T00:05:00Z", 2, "f");
  EXPECT_EQ(numbers(), (std::vector<std::int64_t>{2, 4, 5, 6})) << "attempt 6 trains, and this one was refused";
}

TEST_F(RunStatusCode, IsDoneWhenItWasExportedBeforeItsLastStep) {
  const std::filesystem::path saved = folder_ / "checkpoints/step-00000006";
  std::filesystem::create_directories(saved);
  write_file_atomically(saved / "manifest.json", "{}");
  run_ended("2026-01-01T00:01:00Z", 0);
  EXPECT_EQ(state(), RunState::ended) << "--until";
  std::filesystem::create_directories(folder_ / "adapter");
  write_file_atomically(folder_ / "adapter/adapter_config.json", "{}");
  EXPECT_EQ(state(), RunState::done) << "evaluation.patience";
  std::filesystem::last_write_time(saved, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(state(), RunState::ended) << "it went on, and --until stopped it";
}

// The clock of a file server is ahead.
TEST_F(RunStatusCode, AFileOfTheFutureIsNew) {
  run_ended("2026-01-01T00:01:00Z", 0);
  write_file_atomically(folder_ / "remote.json", R"({"url": "s3://bucket", "step": 4})");
  std::filesystem::last_write_time(folder_ / "remote.json",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(status_of(folder_.path()).remote_age_s, 0);
}

TEST_F(RunStatusCode, AFileThatNoRunHasWrittenIsNamed) {
  run_ended("2026-01-01T00:01:00Z", 0);
  for (const char* text : {R"({"url": 5})", R"({"url": "s3://bucket", "step": "4"})", "[]"}) {
    write_file_atomically(folder_ / "remote.json", text);
    try {
      status_of(folder_.path());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data) << text;
      EXPECT_TRUE(std::string_view(error.what()).starts_with((folder_ / "remote.json").string() + ": not an object"))
          << error.what();
    }
  }
}

}  // namespace
}  // namespace octet::app
