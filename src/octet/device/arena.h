// A stack allocator over one Buffer, so that a training step allocates no device memory. The stash holds what lives from the
// forward to the backward pass; the scratch holds what lives within one op.
#pragma once

#include <cstddef>

#include "octet/device/device.h"

namespace octet {

class Arena {
 public:
  // Allocates `capacity` bytes on `device` now. On the meta device the capacity is unlimited; the high-water mark of a step
  // there is the capacity that a real device needs.
  Arena(Device& device, MemoryCategory category, std::size_t capacity);

  // Returns memory that is not initialised and is aligned to
  // Device::kAlignment. Throws Error{internal} if the capacity is exceeded.
  void* allocate(std::size_t bytes);

  std::size_t used() const { return used_; }
  std::size_t allocations() const { return allocations_; }  // since construction
  std::size_t high_water() const { return high_water_; }
  void* memory() const { return buffer_.data(); }
  std::size_t capacity() const { return buffer_.bytes(); }
  // Frees everything that was allocated since the arena had `used` bytes in use.
  void release_to(std::size_t used);

 private:
  Buffer buffer_;
  std::size_t limit_;
  std::size_t used_ = 0, high_water_ = 0, allocations_ = 0;
};

// Frees, at the end of a scope, everything that was allocated within it.
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
