#include "octet/device/device.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/device/cpu/cpu_device.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/device/meta/meta_device.h"

namespace octet {

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda";
    case DeviceKind::meta: return "meta";
  }
  return "?";
}

std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> names = {
      "weights", "master weights", "moments", "gradients", "activations", "workspace", "state"};
  return names[static_cast<std::size_t>(category)];
}

void MemoryMeter::add(MemoryCategory category, std::size_t amount) {
  const auto i = static_cast<std::size_t>(category);
  bytes[i] += amount;
  total += amount;
  peak[i] = std::max(peak[i], bytes[i]);
  total_peak = std::max(total_peak, total);
  ++allocations;
}

void MemoryMeter::remove(MemoryCategory category, std::size_t amount) {
  bytes[static_cast<std::size_t>(category)] -= amount;
  total -= amount;
}

Buffer Device::allocate(std::size_t bytes, MemoryCategory category) {
  const std::size_t rounded = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), kAlignment));
  void* data = acquire(rounded);
  memory_->add(category, rounded);
  return {*this, data, rounded, category};
}

Buffer::~Buffer() {
  if (!device_) return;
  device_->memory_->remove(category_, bytes_);
  device_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(category_, other.category_);
  return *this;
}

std::unique_ptr<Device> make_device(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return make_cpu_device();
    case DeviceKind::cuda: return make_cuda_device();
    case DeviceKind::meta: return make_meta_device();
  }
  fail(ExitCode::internal, "unknown device kind");
}

}  // namespace octet
