// Groups of ranks that are threads of one process: between two barriers each reads what the others have shown.
// comm/group_test.cpp puts them beside Gloo, of whose sockets they cost nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "octet/comm/group.h"

namespace octet::testing {

class ThreadMeeting;

// Where the ranks of all groups meet: one object for all of them.
class ThreadMeetings {
 public:
  // `reach`: ranks fetch what others have shared from their memory, as GPUs of one machine do.
  explicit ThreadMeetings(bool reach = false) : reach_(reach) {}

  std::shared_ptr<ThreadMeeting> of(const std::string& group, int size);
  bool reach() const { return reach_; }
  // How many parts were fetched in groups that have ended.
  std::int64_t fetched() const { return fetched_; }
  void add_fetched(std::int64_t count) {
    const std::lock_guard lock(mutex_);
    fetched_ += count;
  }

 private:
  const bool reach_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadMeeting>> meetings_;
  std::int64_t fetched_ = 0;
};

// A rank that leaves ends the operations of the others with Error{peer}.
std::unique_ptr<comm::Group> make_thread_group(ThreadMeetings& meetings, const std::string& name, int rank, int size);

}  // namespace octet::testing
