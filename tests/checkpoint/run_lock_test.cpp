#include "octet/checkpoint/run_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "checkpoint/files.h"
#include "octet/base/file.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr RunLockTimes kQuick{.beat_s = 0.02, .renewed_s = 0.2, .silence_s = 0.3, .settle_s = 0.05, .retry_s = 0};
// A test that waited for silence would not end.
constexpr RunLockTimes kNoPatience{.beat_s = 0.02, .renewed_s = 0.2, .silence_s = 1e6, .retry_s = 0};

// The lock of a process that this one cannot see.
std::string foreign_lock(int counter, const std::string& run = "abc") {
  return concat(R"({"host":"elsewhere","pid":4711,"since":"2026-01-02T03:04:05Z","run":")", run,
                R"(","boot":"b","pid_namespace":"p","machine":"m","start_ticks":5,"counter":)", counter, "}\n");
}

void put_lock(const fs::path& folder, const std::string& text) {
  testing::write_text(folder / "next", text);
  fs::rename(folder / "next", folder / "run.lock");
}

class RunLockTest : public ::testing::Test {
 protected:
  // Returns what the constructor prints to stderr.
  std::string taken(RunLockTimes times) const {
    ::testing::internal::CaptureStderr();
    {
      const RunLock lock(folder_.path(), times);
      EXPECT_TRUE(slurp(path_).find(concat("\"pid\":", ::getpid())) != std::string::npos) << slurp(path_);
    }
    EXPECT_FALSE(fs::exists(path_));
    return ::testing::internal::GetCapturedStderr();
  }
  TemporaryFolder folder_;
  fs::path path_ = folder_ / "run.lock";
};

TEST_F(RunLockTest, ASecondHolderIsRefusedAtOnceAndLearnsWhoHolds) {
  {
    const RunLock lock(folder_.path(), kNoPatience);
    const std::string message = error_of(ExitCode::config, [&] { RunLock second(folder_.path(), kNoPatience); });
    EXPECT_TRUE(contains(message, folder_.path().string() + ": another run writes here: process " + std::to_string(::getpid()) +
                                      " on " + ProcessIdentity::mine().host + ", since 20"));
    EXPECT_TRUE(fs::exists(path_)) << "the refused one leaves the lock alone";
  }
  EXPECT_EQ(taken(kNoPatience), "") << "a lock that was given back is not taken over";
}

TEST_F(RunLockTest, ASignalHandlerRemovesItsOwnLockOnly) {
  {
    const RunLock lock(folder_.path(), kNoPatience);
    abandon_run_lock();
    EXPECT_FALSE(fs::exists(path_));
  }
  {
    const RunLock lock(folder_.path(), kNoPatience);
    put_lock(folder_.path(), foreign_lock(1));
    abandon_run_lock();
    EXPECT_TRUE(fs::exists(path_));
  }
  abandon_run_lock();
  EXPECT_TRUE(fs::exists(path_)) << "this process holds no lock";
  fs::remove(path_);
}

// Another path helps, and a second try does not.
TEST_F(RunLockTest, APathThatCannotBeAFolderIsAMistakeOfTheConfiguration) {
  folder_.write("file", "");
  for (const fs::path& path : {folder_ / "file/x", fs::path("/proc/none/x")})
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { RunLock lock(path, kQuick); }), path.string() + ": ")) << path;
}

TEST_F(RunLockTest, RemovesAFolderThatItMadeAndNobodyUsed) {
  { const RunLock lock(folder_ / "new", kNoPatience); }
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  {
    const RunLock lock(folder_ / "new", kNoPatience);
    folder_.write("new/file", "");
  }
  EXPECT_TRUE(fs::exists(folder_ / "new/file"));
}

TEST_F(RunLockTest, ADeadHolderOfThisMachineIsTakenOverAtOnce) {
  for (const bool reaped : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto* lock = new RunLock(folder_.path(), kNoPatience);
      ::_exit(lock == nullptr);  // without giving it back
    }
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | (reaped ? 0 : WNOWAIT)), 0);
    ASSERT_TRUE(fs::exists(path_));
    EXPECT_TRUE(contains(taken(kNoPatience), concat("taken over from process ", child, " on ", ProcessIdentity::mine().host)));
    if (!reaped) ::waitpid(child, nullptr, 0);
  }
}

// replace() writes run.lock.PID.RANDOM and renames it.
TEST_F(RunLockTest, WhatAKilledTakeoverLeftGoesUnlessItMayGoOn) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto* lock = new RunLock(folder_.path(), kNoPatience);
    ::_exit(lock == nullptr);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  fs::rename(path_, folder_ / concat("run.lock.", child, ".1"));
  testing::write_text(folder_ / "run.lock.1.2", "{");
  testing::write_text(folder_ / "run.lock.4711.3", foreign_lock(1));
  {
    const RunLock lock(folder_.path(), kNoPatience);
    fs::copy_file(path_, folder_ / "run.lock.5.4");
    EXPECT_EQ(names_in(folder_.path()),
              (std::vector<std::string>{"run.lock", "run.lock.1.2", "run.lock.4711.3", "run.lock.5.4"}));
    error_of(ExitCode::config, [&] { RunLock second(folder_.path(), kNoPatience); });
  }
  { const RunLock next(folder_.path(), kNoPatience); }
  EXPECT_TRUE(fs::exists(folder_ / "run.lock.5.4")) << "its process lives";
}

TEST_F(RunLockTest, ALinkThatLeadsNowhereIsRefused) {
  fs::create_symlink("/nonexistent", path_);
  EXPECT_EQ(error_of(ExitCode::config, [&] { RunLock lock(folder_.path(), kQuick); }),
            path_.string() + ": a link that leads nowhere; remove it");
  EXPECT_TRUE(fs::is_symlink(path_));
}

TEST_F(RunLockTest, AHolderElsewhereIsTakenOverWhenItsCounterStandsStill) {
  put_lock(folder_.path(), foreign_lock(7));
  const auto start = Clock::now();
  const std::string said = taken(kQuick);
  EXPECT_GE(seconds_since(start), kQuick.silence_s);
  EXPECT_TRUE(contains(said, "process 4711 on elsewhere, since 2026-01-02T03:04:05Z, holds this folder. Waiting up to 0.3 s"));
  EXPECT_TRUE(contains(said, "taken over from process 4711 on elsewhere"));
  EXPECT_TRUE(contains(said, "whose counter stood still for 0.3 s"));
}

TEST_F(RunLockTest, AHolderElsewhereWhoseCounterGrowsIsRefused) {
  put_lock(folder_.path(), foreign_lock(1));
  std::atomic<bool> stop = false;
  std::thread holder([&] {
    for (int i = 2; !stop; ++i) {
      put_lock(folder_.path(), foreign_lock(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const std::string message = error_of(ExitCode::config, [&] { RunLock lock(folder_.path(), kNoPatience); });
  stop = true;
  holder.join();
  EXPECT_TRUE(contains(message, "another run writes here: process 4711 on elsewhere, since 2026-01-02T03:04:05Z"));
  EXPECT_TRUE(contains(slurp(path_), "elsewhere"));
}

TEST_F(RunLockTest, AFileThatIsNoLockIsWatchedLikeOne) {
  for (const std::string text : {"", "{", "[[[", "{\"pid\":\"x\"}"}) {
    put_lock(folder_.path(), text);
    EXPECT_TRUE(contains(taken(kQuick), ", whose counter stood still for 0.3 s")) << text;
  }
}

TEST_F(RunLockTest, WhoHasLostTheLockSaysSoAndLeavesTheOtherAlone) {
  {
    RunLock lock(folder_.path(), kQuick);
    lock.renew();
    lock.check();
    put_lock(folder_.path(), foreign_lock(1));
    const std::string message = error_of(ExitCode::config, [&] { lock.renew(); });
    EXPECT_TRUE(contains(message, "another run has taken this folder over: process 4711 on elsewhere"));
    error_of(ExitCode::config, [&] { lock.check(); });
  }
  EXPECT_EQ(slurp(path_), foreign_lock(1));
}

TEST_F(RunLockTest, TheThreadNoticesTheLossByItself) {
  RunLock lock(folder_.path(), kQuick);
  put_lock(folder_.path(), foreign_lock(1));
  bool lost = false;
  for (int i = 0; i < 1000 && !lost; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    try {
      lock.check();
    } catch (const Error&) {
      lost = true;
    }
  }
  EXPECT_TRUE(lost);
}

TEST_F(RunLockTest, TheCounterGrowsByItself) {
  const RunLock lock(folder_.path(), kQuick);
  const std::string first = slurp(path_);
  std::string later = first;
  for (int i = 0; i < 1000 && later == first; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    later = slurp(path_);
  }
  EXPECT_NE(later, first);
  EXPECT_EQ(later.size(), first.size());
}

TEST_F(RunLockTest, AFileThatSomebodyRemovedIsMadeAgain) {
  RunLock lock(folder_.path(), {.beat_s = 1000});
  fs::remove(path_);
  lock.renew();
  EXPECT_TRUE(contains(slurp(path_), concat("\"pid\":", ::getpid())));
  error_of(ExitCode::config, [&] { RunLock second(folder_.path(), kNoPatience); });
}

TEST_F(RunLockTest, WhoCannotRenewPublishesNothing) {
  RunLock lock(folder_.path(), kQuick);
  fs::remove(path_);
  fs::create_directory(path_);  // which cannot be read as a file
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * kQuick.renewed_s));
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { lock.renew(); }), "run.lock: could not be renewed for 0 s"));
  fs::remove(path_);
}

// The file system of the folder is unmounted, and what is beneath the mount point takes its place.
TEST_F(RunLockTest, NothingIsPublishedOnAnotherFileSystem) {
  const fs::path beneath = concat("/dev/shm/octet-run-lock-test-", ::getpid());
  fs::create_directory(beneath);
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat(folder_.path().c_str(), &here) + ::stat(beneath.c_str(), &there), 0);
  if (here.st_dev == there.st_dev) {
    fs::remove(beneath);
    GTEST_SKIP() << "/dev/shm is on the file system of temporary folders";
  }
  const fs::path link = folder_ / "mounted";
  fs::create_directory(folder_ / "disk");
  fs::create_directory_symlink(folder_ / "disk", link);
  RunLock lock(link, {.beat_s = 1000});
  const auto mount = [&](const fs::path& target) {
    fs::create_directory_symlink(target, folder_ / "next");
    fs::rename(folder_ / "next", link);
  };
  mount(beneath);
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { lock.renew(); }),
                       link.string() + ": is on another file system than when this run began"));
  EXPECT_FALSE(fs::exists(beneath / "run.lock"));
  mount(folder_ / "disk");
  EXPECT_NO_THROW(lock.renew());
  fs::remove_all(beneath);
}

TEST_F(RunLockTest, OfManyProcessesOneGetsAFolder) {
  for (const bool dead_holder : {false, true}) {
    if (dead_holder) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(new RunLock(folder_.path(), kNoPatience) == nullptr);
      ::waitpid(child, nullptr, 0);
    }
    int go[2];
    ASSERT_EQ(::pipe(go), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      children.push_back(::fork());
      if (children.back() != 0) continue;
      ::close(go[1]);
      char byte;
      if (::read(go[0], &byte, 1) != 0) ::_exit(3);  // until the parent closes its end
      std::freopen("/dev/null", "w", stderr);
      try {
        const RunLock lock(folder_.path(), kNoPatience);
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        ::_exit(0);
      } catch (const Error& error) {
        ::_exit(error.code() == ExitCode::config ? 2 : 1);
      }
    }
    ::close(go[0]);
    ::close(go[1]);
    int holders = 0;
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status));
      EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2) << WEXITSTATUS(status);
      holders += WEXITSTATUS(status) == 0;
    }
    EXPECT_EQ(holders, 1);
    fs::remove(path_);
  }
}

}  // namespace
}  // namespace octet::checkpoint
