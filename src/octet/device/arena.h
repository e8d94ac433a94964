// Memory that is given out and taken back in LIFO order, from one Buffer: no allocation in the step.
// The stash holds what lives from forward to backward, the scratch what lives within an op.
#pragma once

#include <cstddef>

#include "octet/device/device.h"

namespace octet {

class Arena {
 public:
  // With `capacity` bytes taken from `device` now. On the meta device the capacity is without limit: the high-water mark of
  // a step there is the capacity to give on a real device.
  Arena(Device& device, MemoryCategory category, std::size_t capacity);

  // Not initialised; aligned to Device::kAlignment. Throws Error{internal} when the capacity is exceeded.
  void* allocate(std::size_t bytes);

  std::size_t used() const { return used_; }
  std::size_t high_water() const { return high_water_; }
  void* memory() const { return buffer_.data(); }
  std::size_t capacity() const { return buffer_.bytes(); }
  // Everything allocated after the arena had `used` bytes in use is taken back.
  void release_to(std::size_t used);

 private:
  Buffer buffer_;
  std::size_t limit_;
  std::size_t used_ = 0, high_water_ = 0;
};

// Takes back, at its end, what was allocated since its beginning.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.used()) {}
  ~ArenaScope() { arena_.release_to(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  std::size_t mark_;
};

}  // namespace octet
