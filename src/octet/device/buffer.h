#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace octet {

// The purpose of memory. The memory plan has one line for each category.
enum class MemoryCategory : std::uint8_t {
  weights,         // what GEMMs and norms read: BF16 or FP32 values, FP8 codes and their transposes
  master_weights,  // FP32 copies that the optimizer updates
  moments,         // first and second moments of AdamW
  gradients,
  activations,  // kept from the forward to the backward pass
  workspace,    // used within an op or a block, and for batches
  state,        // scales, amax histories and scalars
  host,         // optimizer states in host memory, which does not count as device memory; must stay the last
};
constexpr std::size_t kMemoryCategories = 8, kDeviceCategories = kMemoryCategories - 1;
std::string_view name_of(MemoryCategory category);

// Bytes in use now and at the peak, by category and in total, and the number of allocations. The total leaves out host memory
// on every kind of device.
struct MemoryMeter {
  std::array<std::size_t, kMemoryCategories> bytes{};
  std::array<std::size_t, kMemoryCategories> peak{};
  std::size_t total = 0, total_peak = 0;
  std::size_t allocations = 0;

  void add(MemoryCategory category, std::size_t amount);
  void remove(MemoryCategory category, std::size_t amount);
};

class Device;

// Owns memory of a device. Movable, not copyable. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Buffer(Device& device, void* data, std::size_t bytes, MemoryCategory category)
      : device_(&device), data_(data), bytes_(bytes), category_(category) {}

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryCategory category_{};
};

}  // namespace octet
