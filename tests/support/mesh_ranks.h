// Gives ranks that are threads the groups of a mesh.
#pragma once

#include <algorithm>

#include "octet/comm/transport.h"
#include "octet/parallel/groups.h"
#include "support/ranks.h"
#include "support/thread_group.h"

namespace octet::testing {

// All ranks of a mesh share this object. On GPUs, one for each rank, the groups use NCCL; on the CPU they exchange data in
// memory.
class ThreadRanks {
 public:
  explicit ThreadRanks(bool reach = false) : meetings_(reach) {}

  // Returns the groups of one rank, which uses this device.
  parallel::Groups groups(const parallel::Mesh& mesh, int rank, Device& device) {
    return parallel::make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
      const int own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
      const int size = static_cast<int>(ranks.size());
      if (device.kind() == DeviceKind::cpu) return make_thread_group(meetings_, name, own, size);
      return comm::make_group(
          device, {.name = name,
                   .rank = own,
                   .size = size,
                   .set = [this](const std::string& key, std::string_view value, int reads) { store_.set(key, value, reads); },
                   .get = [this](const std::string& key) { return store_.get(key); }});
    });
  }
  const ThreadMeetings& meetings() const { return meetings_; }

 private:
  ThreadStore store_;
  ThreadMeetings meetings_;
};

}  // namespace octet::testing
