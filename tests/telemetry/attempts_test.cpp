#include "octet/telemetry/attempts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "octet/base/file.h"
#include "octet/base/system_call.h"
#include "support/folder.h"

namespace octet::telemetry {
namespace {

using octet::testing::TemporaryFolder;
namespace fs = std::filesystem;

TEST(Attempts, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  const Attempts attempts(folder.path());
  EXPECT_TRUE(attempts.read().empty());
  Attempt first{.ranks = 3,
                .started = "2026-11-25T10:00:00Z",
                .supervisor = ProcessIdentity::mine(),
                .pages = 7,
                .most_restarts = 3,
                .most_per_hour = 20,
                .excluded = {{.node = 1, .host = "host1", .why = "gate: a wrong product"}},
                .from_step = 40,
                .from = "memory"};
  attempts.begin(first);
  EXPECT_EQ(first.number, 1);
  EXPECT_TRUE(attempts.read().front().ended.empty());
  first.ended = "2026-11-25T10:05:00Z";
  first.code = 137;
  first.what = "rank 1 was killed by signal 9 (SIGKILL) \xff";
  first.last_step = 57;
  first.steps = 23;
  first.checkpoint_step = 56;
  first.next = "restarts in 5 s";
  first.seconds = {{"joining", 0.25}, {"total", 300.5}};
  attempts.write(first);
  Attempt second{.ranks = 3};
  attempts.begin(second);
  EXPECT_EQ(second.number, 2);
  const std::vector<Attempt> all = attempts.read();
  ASSERT_EQ(all.size(), 2u);
  const Attempt& read = all.front();
  EXPECT_EQ(read.number, 1);
  EXPECT_EQ(read.ranks, 3);
  EXPECT_EQ(read.started, first.started);
  EXPECT_TRUE(read.supervisor == first.supervisor);
  EXPECT_EQ(read.pages, 7);
  EXPECT_EQ(read.most_restarts, 3);
  EXPECT_EQ(read.most_per_hour, 20);
  EXPECT_TRUE(read.excluded == first.excluded);
  EXPECT_EQ(all.back().most_restarts, -1) << "as in a file of an earlier version";
  EXPECT_EQ(read.from_step, 40);
  EXPECT_EQ(read.from, "memory");
  EXPECT_EQ(read.ended, first.ended);
  EXPECT_EQ(read.code, 137);
  EXPECT_EQ(read.what, "rank 1 was killed by signal 9 (SIGKILL) \xef\xbf\xbd");
  EXPECT_EQ(read.last_step, 57);
  EXPECT_EQ(read.steps, 23);
  EXPECT_EQ(read.checkpoint_step, 56);
  EXPECT_EQ(read.next, first.next);
  EXPECT_EQ(read.seconds, first.seconds);
}

// A number is never used twice, also if its file is empty because the machine went down, or holds something else.
TEST(Attempts, NumbersOnlyGrow) {
  const TemporaryFolder folder;
  const Attempts attempts(folder.path());
  Attempt attempt;
  attempts.begin(attempt);
  std::ofstream(folder / "attempts/00000002.json");
  std::ofstream(folder / "attempts/00000003.json") << "[1, 2]";
  std::ofstream(folder / "attempts/notes.txt") << "mine";
  attempts.begin(attempt);
  EXPECT_EQ(attempt.number, 4);
  EXPECT_EQ(attempts.read().size(), 2u);
  EXPECT_EQ(read_file(folder / "attempts/00000003.json"), "[1, 2]");
  attempt.number = 7;
  attempts.begin(attempt);
  EXPECT_EQ(attempt.number, 7) << "5 and 6 had no room for a file";
}

// Two coordinators of a network that fell apart begin at the same moment. The one that comes second must see who came first,
// and not a file that says nothing.
TEST(Attempts, AreNeverSeenEmpty) {
  const TemporaryFolder folder;
  const Attempts attempts(folder.path());
  fs::create_directories(folder / "attempts");
  constexpr int kAttempts = 100;
  std::atomic<bool> done = false;
  std::thread coordinator([&] {
    for (int number = 1; number <= kAttempts; ++number) EXPECT_TRUE(attempts.begin_as({.number = number, .job = "mine"}));
    done = true;
  });
  int empty = 0;
  while (!done) {
    for (const auto& entry : fs::directory_iterator(folder / "attempts")) {
      std::error_code gone;
      empty += entry.path().extension() == ".json" && fs::file_size(entry.path(), gone) == 0 ? 1 : 0;
    }
  }
  coordinator.join();
  EXPECT_EQ(empty, 0);
  EXPECT_FALSE(attempts.begin_as({.number = kAttempts, .job = "other"}));
  EXPECT_EQ(attempts.read().size(), std::size_t{kAttempts});
  for (const Attempt& attempt : attempts.read()) EXPECT_EQ(attempt.job, "mine");
  for (const auto& entry : fs::directory_iterator(folder / "attempts")) EXPECT_EQ(entry.path().extension(), ".json");
}

// A file system without hard links shows the file before its text.
TEST(Attempts, AreFoundOnceTheirTextIsThere) {
  const TemporaryFolder folder;
  const Attempts attempts(folder.path());
  ASSERT_TRUE(attempts.begin_as({.number = 1, .job = "theirs"}));
  const std::string text = read_file(attempts.path_of(1));
  testing::write_text(attempts.path_of(1), "");
  EXPECT_FALSE(attempts.find(1, 0));
  std::thread other([&] { testing::write_text(attempts.path_of(1), text); });
  const std::optional<Attempt> found = attempts.find(1, 60);
  other.join();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->job, "theirs");
}

TEST(Attempts, AFileThatIsNoneIsToldOnce) {
  const TemporaryFolder folder;
  const Attempts attempts(folder.path());
  fs::create_directories(folder / "attempts");
  std::ofstream(folder / "attempts/00000002.json") << "[1, 2]";
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) attempts.read();
  const std::string said = ::testing::internal::GetCapturedStderr(), words = "not an attempt of a run; left out";
  EXPECT_NE(said.find(words), said.npos);
  EXPECT_EQ(said.find(words), said.rfind(words)) << said;
}

TEST(Attempts, AFolderThatCannotBeReadIsNotEmpty) {
  const TemporaryFolder folder;
  std::ofstream(folder / "attempts") << "a file";
  EXPECT_THROW(Attempts(folder.path()).read(), SystemError);
}

// 10 s until training, 100 s of it for 20 steps, of which 15 are kept, and 5 s to stop.
Attempt failed_attempt() {
  return {.started = "2026-11-25T10:00:00Z",
          .from_step = 40,
          .ended = "2026-11-25T10:01:55Z",
          .code = 137,
          .last_step = 60,
          .checkpoint_step = 55,
          .seconds = {{"training", 10}, {"first_step", 15}, {"stop", 5}, {"total", 115}}};
}

TEST(TimeOfAttempts, DividesAnAttempt) {
  const TimeOfAttempts time = time_of(failed_attempt(), 55);
  EXPECT_DOUBLE_EQ(time.start, 10);
  EXPECT_DOUBLE_EQ(time.kept, 75);
  EXPECT_DOUBLE_EQ(time.again, 25);
  EXPECT_DOUBLE_EQ(time.stop, 5);
  const TimeOfAttempts lost = time_of(failed_attempt(), 30);
  EXPECT_DOUBLE_EQ(lost.kept, 0) << "the next attempt began before this one";
  EXPECT_DOUBLE_EQ(lost.again, 100);
}

// A rank has stood still for 60 s before anybody noticed it.
TEST(TimeOfAttempts, CountsStepsUntilTheLastOneOnly) {
  Attempt attempt = failed_attempt();
  attempt.seconds["last_step"] = 50;
  const TimeOfAttempts time = time_of(attempt, 55);
  EXPECT_DOUBLE_EQ(time.start, 10);
  EXPECT_DOUBLE_EQ(time.kept, 30);
  EXPECT_DOUBLE_EQ(time.again, 10);
  EXPECT_DOUBLE_EQ(time.unnoticed, 60);
  EXPECT_DOUBLE_EQ(time.stop, 5);
  EXPECT_DOUBLE_EQ(time_of(std::vector<Attempt>{attempt}).all, 115);
  Attempt second = failed_attempt();
  second.from_step = 55;
  second.seconds["waited"] = 2;
  EXPECT_DOUBLE_EQ(lost_before({attempt, second}, 1).value_or(0), 10 + 60 + 5 + 2 + 15);
}

TEST(TimeOfAttempts, WithoutAStepAllIsStart) {
  Attempt attempt{.from_step = 40, .last_step = 40, .seconds = {{"joining", 1}, {"stop", 2}, {"total", 20}}};
  const TimeOfAttempts time = time_of(attempt, 40);
  EXPECT_DOUBLE_EQ(time.start, 18);
  EXPECT_DOUBLE_EQ(time.stop, 2);
  EXPECT_DOUBLE_EQ(time.kept + time.again, 0);
}

// The attempt went back to step 40 after 30 of its 50 steps, and ended at step 60.
TEST(TimeOfAttempts, CountsStepsThatARollbackLeaves) {
  Attempt attempt = failed_attempt();
  attempt.steps = 50;
  const TimeOfAttempts time = time_of(attempt, 60);
  EXPECT_DOUBLE_EQ(time.kept, 40);
  EXPECT_DOUBLE_EQ(time.again, 60);
  attempt.last_step = 40;  // it was killed before the first step after the rollback
  EXPECT_DOUBLE_EQ(time_of(attempt, 40).again, 100);
}

// Somebody sets the clock two hours ahead, and back again. The supervisor has measured the time between the attempts.
TEST(TimeOfAttempts, DependsOnNoClockWithinASupervisor) {
  Attempt second = failed_attempt(), third = failed_attempt();
  second.started = "2026-11-25T12:02:00Z";
  second.seconds["waited"] = 5;
  third.started = "2026-11-25T10:04:15Z";
  third.seconds["waited"] = 20;
  const std::vector<Attempt> attempts{failed_attempt(), second, third};
  EXPECT_DOUBLE_EQ(time_of(attempts).between, 25);
  EXPECT_DOUBLE_EQ(time_of(attempts).all, 3 * 115 + 25);
  EXPECT_DOUBLE_EQ(lost_before(attempts, 1).value_or(0), 100 + 5 + 5 + 15) << "all steps are done again";
}

// The second attempt begins 185 s after the first began, 70 s after its end, at step 55, and keeps all of its steps.
TEST(TimeOfAttempts, AddsUpToTheTimeOfTheRun) {
  Attempt second{.started = "2026-11-25T10:03:05Z",
                 .from_step = 55,
                 .ended = "2026-11-25T10:04:00Z",
                 .last_step = 65,
                 .seconds = {{"training", 5}, {"first_step", 6}, {"total", 55}}};
  const TimeOfAttempts time =
      time_of(std::vector<Attempt>{failed_attempt(), second, Attempt{.started = "2026-11-25T11:00:00Z", .from_step = 65}});
  EXPECT_DOUBLE_EQ(time.all, 240);
  EXPECT_DOUBLE_EQ(time.kept, 75 + 50);
  EXPECT_DOUBLE_EQ(time.again, 25);
  EXPECT_DOUBLE_EQ(time.start, 15);
  EXPECT_DOUBLE_EQ(time.stop, 5);
  EXPECT_DOUBLE_EQ(time.between, 70);
  EXPECT_DOUBLE_EQ(time.productive(), 125.0 / 240);
  EXPECT_DOUBLE_EQ(time_of(std::vector<Attempt>{}).productive(), 0);
}

// 100 steps of 0.1 s after a start of 2 s, then 0.5 s until all ranks had ended; the next attempt goes on from step 80, 3 s later.
TEST(Attempts, KnowWhatAFaultHasCost) {
  const Attempt first{.started = "2026-11-25T10:00:00Z",
                      .ended = "2026-11-25T10:00:12Z",
                      .last_step = 100,
                      .seconds = {{"training", 2}, {"first_step", 2.1}, {"stop", 0.5}, {"total", 12.5}}};
  Attempt second{.started = "2026-11-25T10:00:15Z", .from_step = 80, .seconds = {{"training", 1.5}}};
  EXPECT_FALSE(lost_before({first, second}, 1)) << "its first step has not come";
  second.seconds["first_step"] = 1.6;
  const auto lost = lost_before({first, second}, 1);
  ASSERT_TRUE(lost);
  EXPECT_NEAR(*lost, 20 * 0.1 + 0.5 + 2.5 + 1.6, 1e-9);
  EXPECT_FALSE(lost_before({first, second}, 0));
}

// An attempt of 100 s for 100 steps, which begins at `minute`.
Attempt attempt_of_steps(int minute, std::int64_t from, std::int64_t to) {
  return {.started = "2026-11-25T10:0" + std::to_string(minute) + ":00Z",
          .from_step = from,
          .ended = "later",
          .last_step = to,
          .seconds = {{"training", 5}, {"first_step", 6}, {"total", 5.0 + static_cast<double>(to - from)}}};
}

// The second attempt goes on from memory. The third goes back to storage, so it takes away steps of both.
TEST(KeptStep, IsTheEarliestFromWhichALaterAttemptWentOn) {
  const std::vector<Attempt> attempts{attempt_of_steps(0, 0, 100), attempt_of_steps(2, 90, 100), attempt_of_steps(3, 10, 110)};
  EXPECT_EQ(kept_step(attempts, 0), 10);
  EXPECT_EQ(kept_step(attempts, 1), 10);
  EXPECT_EQ(kept_step(attempts, 2), 110);
  EXPECT_EQ(lost_steps(attempts, 0), 90);
  EXPECT_EQ(lost_steps(attempts, 1), 10) << "an attempt cannot lose steps before its first";
  EXPECT_DOUBLE_EQ(time_of(attempts).kept, 10 + 100);
  EXPECT_DOUBLE_EQ(time_of(attempts).again, 90 + 10);
  // 105 s of the first attempt end 15 s before the second begins, and 15 s of that one 45 s before the third.
  EXPECT_DOUBLE_EQ(lost_before(attempts, 1).value_or(0), 10 + 15 + 6);
  EXPECT_DOUBLE_EQ(lost_before(attempts, 2).value_or(0), 80 + 10 + 45 + 6) << "ten steps were lost before";
}

// The second attempt ends before it has read a checkpoint, so its from_step says nothing.
TEST(KeptStep, IsNotThatOfAnAttemptThatNeverTrained) {
  Attempt none = attempt_of_steps(2, 0, 0);
  none.seconds = {{"joining", 1}, {"total", 3}};
  const std::vector<Attempt> attempts{attempt_of_steps(0, 0, 100), none, attempt_of_steps(3, 100, 200)};
  EXPECT_EQ(kept_step(attempts, 0), 100);
  EXPECT_EQ(lost_steps(attempts, 0), 0);
  EXPECT_EQ(lost_steps(attempts, 1), 0);
  EXPECT_DOUBLE_EQ(time_of(attempts).kept, 200);
  EXPECT_DOUBLE_EQ(lost_before(attempts, 2).value_or(0), 57 + 6);
}

}  // namespace
}  // namespace octet::telemetry
