// Ranks as threads of one process.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "octet/base/require.h"

namespace octet::testing {

// A store that threads share.
class ThreadStore {
 public:
  void set(const std::string& key, std::string_view value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, double timeout_s = 30) {
    std::unique_lock lock(mutex_);
    const bool found = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return values_.count(key) > 0; });
    demand(found, ExitCode::peer, key, ": nobody has set it");
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// body(rank) on a thread each; what they throw, by rank ("" for those that threw nothing).
inline std::vector<std::string> errors_of_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void run_ranks(int size, const std::function<void(int)>& body) {
  const std::vector<std::string> errors = errors_of_ranks(size, body);
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(errors[static_cast<std::size_t>(rank)], "") << "rank " << rank;
}

}  // namespace octet::testing
