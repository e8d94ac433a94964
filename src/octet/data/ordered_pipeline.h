// A pipeline of three stages: one thread reads tasks, many threads work on them, and the calling thread writes the results. Results
// are written in the order in which their tasks were read, for any number of workers. At most `in_flight` tasks exist between read and
// write, which bounds the memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet::data {

template <class Task, class Result>
class OrderedPipeline {
 public:
  struct Stages {
    std::function<bool(Task&)> read;     // fills the next task and returns true, or returns false at the end; called from one thread
    std::function<Result(Task&)> work;   // called from many threads at once
    std::function<void(Result&)> write;  // called in order, from the thread that called run()
  };

  OrderedPipeline(Stages stages, int workers, std::int64_t in_flight)
      : stages_(std::move(stages)), workers_(workers), in_flight_(in_flight) {
    require(workers >= 1 && in_flight >= 1, "pipeline: ", workers, " workers, ", in_flight, " tasks in flight");
  }

  // Returns when all results are written and all threads are joined. Rethrows an exception of a stage after it has written the results
  // of all earlier tasks; later results are not written.
  void run() {
    const auto stop = [this] {
      {
        const std::lock_guard lock(mutex_);
        stop_ = true;
      }
      changed_.notify_all();
    };
    const auto body = [this](int thread) { thread == 0 ? read_all() : work_all(); };
    std::vector<std::thread> threads = start_threads(concat(workers_, " workers"), 1 + workers_, body, stop);
    std::exception_ptr error;
    try {
      write_all();
    } catch (...) {
      error = std::current_exception();
    }
    stop();
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

 private:
  struct Outcome {
    std::optional<Result> result;
    std::exception_ptr error;
  };

  void read_all() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || tasks_read_ - results_written_ < in_flight_; });
        if (stop_) return;
      }
      Task task{};
      bool more = false;
      std::exception_ptr error;
      try {
        more = stages_.read(task);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        if (more) {
          tasks_.emplace_back(tasks_read_++, std::move(task));
        } else {
          if (error) outcomes_[tasks_read_++] = {std::nullopt, error};
          all_read_ = true;
        }
      }
      changed_.notify_all();
      if (!more) return;
    }
  }

  void work_all() {
    for (;;) {
      std::pair<std::int64_t, Task> item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !tasks_.empty() || all_read_; });
        if (stop_ || tasks_.empty()) return;
        item = std::move(tasks_.front());
        tasks_.pop_front();
      }
      Outcome outcome;
      try {
        outcome.result.emplace(stages_.work(item.second));
      } catch (...) {
        outcome.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        outcomes_[item.first] = std::move(outcome);
      }
      changed_.notify_all();
    }
  }

  void write_all() {
    for (std::int64_t next = 0;; ++next) {
      Outcome outcome;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return outcomes_.count(next) > 0 || (all_read_ && next == tasks_read_); });
        const auto found = outcomes_.find(next);
        if (found == outcomes_.end()) return;
        outcome = std::move(found->second);
        outcomes_.erase(found);
      }
      if (outcome.error) std::rethrow_exception(outcome.error);
      stages_.write(*outcome.result);
      {
        const std::lock_guard lock(mutex_);
        ++results_written_;
      }
      changed_.notify_all();
    }
  }

  const Stages stages_;
  const int workers_;
  const std::int64_t in_flight_;

  // All threads wait on one condition variable. A task is about a megabyte, so wake-ups are rare.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::int64_t, Task>> tasks_;
  std::map<std::int64_t, Outcome> outcomes_;
  std::int64_t tasks_read_ = 0, results_written_ = 0;
  bool all_read_ = false, stop_ = false;
};

}  // namespace octet::data
