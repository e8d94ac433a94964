#include "octet/device/meta/meta_device.h"

#include <cstdint>

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
};

class MetaDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::meta; }
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
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
};

}  // namespace

std::unique_ptr<Device> make_meta_device() { return std::make_unique<MetaDevice>(); }

}  // namespace octet
