#include "octet/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace octet
