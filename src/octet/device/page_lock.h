#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"

namespace octet {

// Locks pages of the host's memory that somebody else has reserved, so that copies between them and a device are as fast as those
// of MemoryCategory::host, and do not make the host wait. They are ordinary pages if the device is no GPU, or if `ulimit -l` does
// not allow so many. Unlock them before they are unmapped. Any thread may do both.
//
// The driver lets nobody enqueue work while it locks pages: 2.5 s for 12 GB of small pages on a machine with H100s. So it gets
// one stretch after the other, with pauses. A copy must not cross the border of two stretches.
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
