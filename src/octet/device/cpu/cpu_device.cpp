#include "octet/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "octet/base/require.h"

namespace octet {
namespace {

// Ops run when they are called, so they run in program order and every event has already happened.
class CpuStream final : public Stream {
 public:
  using Stream::Stream;
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy_to_device(void* device, const void* host, std::size_t bytes) override { copy(device, host, bytes); }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* device, std::size_t bytes) override {
    if (bytes > 0) std::memset(device, 0, bytes);
  }

 protected:
  void stamp() override {
    stamps_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }
  std::vector<double> take_stamps() override { return std::exchange(stamps_, {}); }

 private:
  std::vector<double> stamps_;
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(*this); }

 protected:
  // The system provides zeroed pages and allocates each when it is first used.
  void* acquire(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    demand(memory != MAP_FAILED, ExitCode::does_not_fit, "cpu: cannot allocate ", bytes, " bytes");
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory, std::size_t bytes) override {
    if (memory) ::munmap(memory, bytes);
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace octet
