// Addresses are numbers that nobody may follow; copies and zeros do nothing.
#include "octet/device/device.h"

#include <cstdint>
#include <utility>

namespace octet {
namespace {

class MetaQueue final : public Queue {
 public:
  using Queue::Queue;
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}

 protected:
  void stamp() override { ++stamps_; }
  std::vector<double> take_stamps() override { return std::vector<double>(std::exchange(stamps_, 0)); }

 private:
  std::size_t stamps_ = 0;
};

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(DeviceKind target) : target_(target) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  DeviceKind target() const override { return target_; }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<MetaQueue>(*this); }

 protected:
  // Distinct addresses above what a process can map, so that following one by mistake faults at once.
  void* acquire(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += bytes + kAlignment;
    return reinterpret_cast<void*>(address);
  }
  void release(void*, std::size_t) override {}

 private:
  DeviceKind target_;
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(DeviceKind target) { return std::make_unique<MetaDevice>(target); }

}  // namespace octet
