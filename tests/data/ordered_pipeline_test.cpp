#include "octet/data/ordered_pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace octet::data {
namespace {

using Pipeline = OrderedPipeline<int, std::vector<int>>;

TEST(OrderedPipeline, KeepsTheOrderAndTheBound) {
  for (const int workers : {1, 2, 5}) {
    int next = 0;
    std::atomic<int> under_way{0}, most{0};
    std::vector<int> written;
    Pipeline pipeline({.read =
                           [&](int& task) {
                             if (next == 300) return false;
                             task = next++;
                             most = std::max(most.load(), ++under_way);
                             return true;
                           },
                       .work =
                           [](int& task) {
                             if (task % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
                             return std::vector<int>{task, task * task};
                           },
                       .write =
                           [&](std::vector<int>& result) {
                             --under_way;
                             EXPECT_EQ(result[1], result[0] * result[0]);
                             written.push_back(result[0]);
                           }},
                      workers, 4);
    pipeline.run();
    ASSERT_EQ(written.size(), 300u);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(written[static_cast<std::size_t>(i)], i);
    EXPECT_LE(most.load(), 5);  // one result may be in the writer, and still be counted, while the next task is read
  }
}

TEST(OrderedPipeline, EndsWithoutTasks) {
  Pipeline pipeline({.read = [](int&) { return false; },
                     .work = [](int&) { return std::vector<int>(); },
                     .write = [](std::vector<int>&) { FAIL(); }},
                    3, 8);
  pipeline.run();
}

enum class Stage { read, work, write };

// Returns the tasks that were written before the error of task 20 was thrown.
std::vector<int> written_before_error(Stage where, int workers) {
  int next = 0;
  std::vector<int> written;
  const auto maybe_throw = [&](Stage stage, int task) {
    // A later task fails earlier. Its error must not be reported instead.
    if (stage == Stage::work && where == stage && task == 21) throw std::runtime_error("task 21");
    if (stage == where && task == 20) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      throw std::runtime_error("task 20");
    }
  };
  Pipeline pipeline({.read =
                         [&](int& task) {
                           task = next++;
                           maybe_throw(Stage::read, task);
                           return true;
                         },
                     .work =
                         [&](int& task) {
                           maybe_throw(Stage::work, task);
                           return std::vector<int>{task};
                         },
                     .write =
                         [&](std::vector<int>& result) {
                           maybe_throw(Stage::write, result[0]);
                           written.push_back(result[0]);
                         }},
                    workers, 8);
  try {
    pipeline.run();
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "task 20");
  }
  return written;
}

TEST(OrderedPipeline, ErrorsComeInOrder) {
  for (const Stage where : {Stage::read, Stage::work, Stage::write}) {
    for (const int workers : {1, 4}) {
      const std::vector<int> written = written_before_error(where, workers);
      ASSERT_EQ(written.size(), 20u);
      EXPECT_EQ(written.back(), 19);
    }
  }
}

}  // namespace
}  // namespace octet::data
