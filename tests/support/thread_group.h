// Groups of ranks that are threads of one process. Each rank reads the operands of the others directly, between two barriers.
// comm/group_test.cpp runs the same tests on these groups and on Gloo.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "octet/comm/group.h"

namespace octet::testing {

class ThreadMeeting;

// The meeting places of all groups. All ranks share one object.
class ThreadMeetings {
 public:
  // `reach`: ranks can fetch shared memory of other ranks directly, as GPUs of one machine can.
  explicit ThreadMeetings(bool reach = false) : reach_(reach) {}

  std::shared_ptr<ThreadMeeting> of(const std::string& group, int size);
  bool reach() const { return reach_; }
  // The number of parts that ranks fetched from each other, in groups that have ended.
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

// If a rank leaves, the operations of the others end with Error{peer}.
std::unique_ptr<comm::Group> make_thread_group(ThreadMeetings& meetings, const std::string& name, int rank, int size);

}  // namespace octet::testing
