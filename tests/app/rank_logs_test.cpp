#include "octet/app/rank_logs.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/folder.h"

namespace octet::app {
namespace {

using octet::testing::TemporaryFolder;

bool comes_true(const std::function<bool()>& condition) {
  for (int tries = 0; tries < 1000 && !condition(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return condition();
}

std::string line_of(int number) { return concat("2026-11-28T12:00:00Z line ", number); }

std::string lines_to(int count) {
  std::string text;
  for (int number = 0; number < count; ++number) text += line_of(number) + "\n";
  return text;
}

TEST(RankLogs, LinesWaitWhileTheFolderCannotBeMade) {
  const TemporaryFolder run;
  run.write("logs", "a file");
  {
    RankLogs logs(run.path());
    for (int number = 0; number < 20; ++number) logs.line(3, line_of(number));
    logs.node_line(1, line_of(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::filesystem::remove(run / "logs");
    ASSERT_TRUE(comes_true([&] { return std::filesystem::exists(run / "logs/rank-00003.log"); }));
    logs.line(3, line_of(20));
  }
  EXPECT_EQ(read_file(run / "logs/rank-00003.log"), lines_to(21));
  EXPECT_EQ(read_file(run / "logs/node-001.log"), lines_to(1));
}

// A write takes only a part of the lines, as on a disk that fills up.
TEST(RankLogs, TheRestOfALineFollowsWhenThereIsRoom) {
  const TemporaryFolder run;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit limit{.rlim_cur = 1000, .rlim_max = old.rlim_max};
  {
    RankLogs logs(run.path());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int number = 0; number < 100; ++number) logs.line(0, line_of(number));
    EXPECT_TRUE(comes_true([&] {
      return std::filesystem::exists(run / "logs/rank-00000.log") &&
             std::filesystem::file_size(run / "logs/rank-00000.log") == 1000;
    }));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_TRUE(comes_true([&] { return std::filesystem::file_size(run / "logs/rank-00000.log") > 1000; }));
  }
  EXPECT_EQ(read_file(run / "logs/rank-00000.log"), lines_to(100));
}

TEST(RankLogs, ItsEndDoesNotWaitForTheDisk) {
  const TemporaryFolder run;
  run.write("logs", "a file");
  ::testing::internal::CaptureStderr();
  {
    RankLogs logs(run.path());
    for (int number = 0; number < 20; ++number) logs.line(number % 2, line_of(number));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("lines of ranks wait in memory until they can be written"), said.npos) << said;
  EXPECT_NE(said.find("/logs: 20 lines could not be written and are lost"), said.npos) << said;
  EXPECT_EQ(read_file(run / "logs"), "a file");
}

}  // namespace
}  // namespace octet::app
