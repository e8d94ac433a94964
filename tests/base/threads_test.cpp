#include "octet/base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "octet/base/start_thread.h"
#include "support/errors.h"
#include "support/paths.h"

namespace octet {
namespace {

class Threads : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(GetParam()); }
};

TEST_P(Threads, EveryTaskOnce) {
  EXPECT_EQ(num_threads(), GetParam());
  for (const std::int64_t tasks : {0, 1, 2, 3, 100, 10000}) {
    std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks));
    parallel_for(tasks, [&](std::int64_t i) { ++counts[static_cast<std::size_t>(i)]; });
    for (std::int64_t i = 0; i < tasks; ++i) ASSERT_EQ(counts[static_cast<std::size_t>(i)], 1) << i << " of " << tasks;
  }
}

TEST_P(Threads, WhatTasksWriteIsSeenAfterwards) {
  std::vector<std::int64_t> values(5000);
  for (int round = 0; round < 20; ++round) {
    parallel_for(5000, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] += i; });
  }
  for (std::int64_t i = 0; i < 5000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 20 * i);
}

TEST_P(Threads, AnExceptionComesBackAndThePoolGoesOn) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_THROW(parallel_for(100, [](std::int64_t i) {
                   if (i == 17) throw std::runtime_error("seventeen");
                 }),
                 std::runtime_error);
    std::atomic<int> done{0};
    parallel_for(50, [&](std::int64_t) { ++done; });
    EXPECT_EQ(done, 50);
  }
}

TEST_P(Threads, NestedCallsRunInTheirTask) {
  std::vector<std::atomic<int>> counts(64);
  parallel_for(8, [&](std::int64_t i) {
    const auto own = std::this_thread::get_id();
    parallel_for(8, [&](std::int64_t j) {
      EXPECT_EQ(std::this_thread::get_id(), own);
      ++counts[static_cast<std::size_t>(8 * i + j)];
    });
  });
  for (const auto& count : counts) EXPECT_EQ(count, 1);
}

TEST_P(Threads, AnExceptionOfANestedCallComesBack) {
  EXPECT_THROW(parallel_for(4, [](std::int64_t) { parallel_for(4, [](std::int64_t) { throw std::logic_error("inner"); }); }),
               std::logic_error);
}

TEST_P(Threads, SeveralCallersAtOnce) {
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) parallel_for(10, [&](std::int64_t) { ++done; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 50 * 10);
}

TEST_P(Threads, RangesCoverOnce) {
  for (const std::int64_t count : {0, 1, 7, 8, 9, 1000}) {
    std::vector<std::atomic<int>> counts(static_cast<std::size_t>(count));
    parallel_ranges(count, 8, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_LT(begin, end);
      EXPECT_LE(end - begin, 8);
      EXPECT_EQ(begin % 8, 0);
      for (std::int64_t i = begin; i < end; ++i) ++counts[static_cast<std::size_t>(i)];
    });
    for (const auto& c : counts) ASSERT_EQ(c, 1);
  }
  EXPECT_ANY_THROW(parallel_ranges(10, 0, [](std::int64_t, std::int64_t) {}));
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 5));

TEST(ThreadCount, MustBePositive) {
  EXPECT_ANY_THROW(set_num_threads(0));
  EXPECT_GE(available_cores(), 1);
}

// A child whose address space may grow by seven stacks of 8 MiB.
bool limit_memory() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t most = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (60 << 20);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

// A child that may not start anything. The limit does not hold for root.
bool limit_processes() {
  constexpr uid_t kNobody = 65534;
  const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
  return ::setrlimit(RLIMIT_NPROC, &limit) == 0 && (::geteuid() != 0 || ::setuid(kNobody) == 0);
}

// Asks for 64 threads: 0 if that is refused in the words that a user should see, and the threads that did start have ended.
int ask_for_threads() {
  try {
    set_num_threads(64);
  } catch (const Error& error) {
    const std::string expected =
        "cannot start 64 computing threads: Resource temporarily unavailable; take fewer threads, or raise the limits of processes (ulimit -u) "
        "and memory (ulimit -v)";
    if (error.what() != expected) return 10;
    if (error.code() != ExitCode::internal) return 11;
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()) == 1 ? 0 : 12;
  }
  return 13;
}

// The pool waited for the threads that had started, for ever.
TEST(StartThread, AThreadThatCannotStartIsAnErrorAndTheOthersEnd) {
  if (testing::faults_library().empty()) GTEST_SKIP() << "sanitizers reserve address space of their own";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // in a fresh process: a fork has no threads of an earlier pool
  EXPECT_EXIT(::_exit(limit_memory() ? ask_for_threads() : 98), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(::_exit(limit_processes() ? ask_for_threads() : 98), ::testing::ExitedWithCode(0), "");
}

// Runs two tasks without a thread: 0 if both have run when start_or_run() returns, and their futures have the outcome.
int run_without_threads() {
  std::string ran;
  std::future<int> number = start_or_run("a task", [&, seven = std::make_unique<int>(7)] {
    ran += "first ";
    return *seven;
  });
  std::future<void> failure = start_or_run("a task", [&] {
    ran += "second";
    fail(ExitCode::data, "no data");
  });
  if (ran != "first second") return 10;
  if (number.get() != 7) return 11;
  return testing::error_of(ExitCode::data, [&] { failure.get(); }) == "no data" ? 0 : 12;
}

TEST(StartThread, WorkThatOthersWaitForRunsWithoutAThread) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      ::_exit(limit_processes() ? run_without_threads() : 98), ::testing::ExitedWithCode(0),
      "warning: cannot start a task: Resource temporarily unavailable; training waits until its work is done; take fewer");
}

TEST(StartThread, TasksAndThreadsReturnWhatTheyDid) {
  EXPECT_EQ(start_task("a task", [] { return 7; }).get(), 7);
  EXPECT_NE(start_or_run("a task", [] { return std::this_thread::get_id(); }).get(), std::this_thread::get_id());
  std::atomic<int> sum = 0;
  std::vector<std::thread> threads = start_threads("threads", 3, [&](int i) { sum += i; }, [] {});
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 3);
}

TEST(StartThread, AtMostFourForEachProcessor) {
  const int most = 4 * available_cores();
  EXPECT_EQ(most_threads(), most);
  check_threads("run.threads", most);
  EXPECT_EQ(testing::error_of(ExitCode::config, [&] { check_threads("run.threads", 1'000'000); }),
            concat("run.threads = 1000000: must be at most ", most, ", which is 4 for each of the ", available_cores(),
                   " processors of this process"));
}

}  // namespace
}  // namespace octet
