// A key-value store for ranks that are threads of one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "octet/base/require.h"

namespace octet::comm {

class ThreadStore {
 public:
  void set(const std::string& key, std::string_view value) {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  // Waits for the key. Throws Error{peer} if it is not set within the timeout.
  std::string get(const std::string& key, double timeout_s = 30) {
    std::unique_lock lock(mutex_);
    const bool found = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return values_.count(key) > 0; });
    demand(found, ExitCode::peer, key, ": no rank has set it");
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace octet::comm
