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
  // If `reads` is above 0, the key goes after so many get().
  void set(const std::string& key, std::string_view value, int reads = 0) {
    const std::lock_guard lock(mutex_);
    values_[key] = {std::string(value), reads};
    changed_.notify_all();
  }
  // Waits for the key. Throws Error{peer} if it is not set within the timeout.
  std::string get(const std::string& key, double timeout_s = 30) {
    std::unique_lock lock(mutex_);
    const bool found = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return values_.count(key) > 0; });
    demand(found, ExitCode::peer, key, ": no rank has set it");
    const auto entry = values_.find(key);
    std::string value = entry->second.text;
    if (entry->second.reads > 0 && --entry->second.reads == 0) values_.erase(entry);
    return value;
  }
  std::size_t keys() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  struct Value {
    std::string text;
    int reads;  // after which it goes; 0: it stays
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Value> values_;
};

}  // namespace octet::comm
