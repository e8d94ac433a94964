#include "octet/device/arena.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "octet/base/math.h"
#include "octet/base/require.h"

namespace octet {

Arena::Arena(Device& device, MemoryCategory category, std::size_t capacity)
    : buffer_(device.allocate(device.kind() == DeviceKind::meta ? 0 : capacity, category)),
      limit_(device.kind() == DeviceKind::meta ? std::numeric_limits<std::size_t>::max() : buffer_.bytes()) {}

void* Arena::allocate(std::size_t bytes) {
  const std::size_t rounded = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), Device::kAlignment));
  require(rounded <= limit_ - used_, "arena: ", rounded, " bytes asked for, ", limit_ - used_, " of ", limit_, " left");
  void* result = static_cast<std::byte*>(buffer_.data()) + used_;
  used_ += rounded;
  ++allocations_;
  high_water_ = std::max(high_water_, used_);
  return result;
}

void Arena::release_to(std::size_t used) {
  require(used <= used_, "arena: release to ", used, " bytes, but only ", used_, " are in use");
  used_ = used;
}

}  // namespace octet
