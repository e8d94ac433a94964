#include "octet/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "octet/base/require.h"

namespace octet {
namespace {

// The functions of Stream::finish_later, in the order of their stream.
struct Unfinished {
  std::deque<std::function<void()>> functions;
  std::size_t finished = 0;
  void finish(std::size_t count) {
    for (; finished < count; ++finished) {
      const std::function<void()> function = std::move(functions.front());
      functions.pop_front();
      function();
    }
  }
  std::size_t count() const { return finished + functions.size(); }
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(std::shared_ptr<Unfinished> unfinished) : unfinished_(std::move(unfinished)), count_(unfinished_->count()) {}
  void wait() const { unfinished_->finish(count_); }

 private:
  std::shared_ptr<Unfinished> unfinished_;
  std::size_t count_;
};

// Ops run when they are called, so they run in program order. Only messages may end later.
class CpuStream final : public Stream {
 public:
  using Stream::Stream;
  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(unfinished_); }
  void wait(const Event& event) override { static_cast<const CpuEvent&>(event).wait(); }
  void synchronize() override { unfinished_->finish(unfinished_->count()); }
  void call(std::function<void()> function) override { function(); }
  void finish_later(std::function<void()> finish) override { unfinished_->functions.push_back(std::move(finish)); }
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
  std::shared_ptr<Unfinished> unfinished_ = std::make_shared<Unfinished>();
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  bool concurrent() const override { return false; }
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
