#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"

namespace octet {

// Locks pages of host memory that the caller has allocated, so that copies between them and a device are as fast as copies of
// MemoryCategory::host, and do not make the host wait. The pages stay pageable if the device is not a GPU, or if `ulimit -l`
// does not allow so many. Destroy the lock before the memory is unmapped. Any thread may do both.
//
// While the driver locks pages, nobody can enqueue work: 2.5 s for 12 GB of small pages on a machine with H100s. So the pages
// are locked in stretches, with pauses between them. A copy must not cross the border of two stretches.
class PageLock {
 public:
  static constexpr std::size_t kStretch = std::size_t{64} << 20;  // the last one may be shorter

  PageLock(Device& device, void* memory, std::size_t bytes);
  ~PageLock();
  PageLock(const PageLock&) = delete;
  PageLock& operator=(const PageLock&) = delete;

 private:
  std::vector<void*> locked_;  // stretches
};

}  // namespace octet
