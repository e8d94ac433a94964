// Devices and streams. A cpu device computes on the host and a cuda device on a GPU. A meta device allocates and computes
// nothing; it adds up the memory and work that the same program would need on a real device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/device/buffer.h"

namespace octet {

enum class DeviceKind : std::uint8_t { cpu, cuda, meta };
std::string_view name_of(DeviceKind kind);

class Stream;

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // The device kind for which the program decides what to do. For a meta device: the kind it stands for; otherwise kind().
  virtual DeviceKind target() const { return kind(); }
  // Whether streams run concurrently. On the CPU they do not: an op has run when its function returns.
  virtual bool concurrent() const { return true; }

  // Returns zero-filled memory aligned to kAlignment. It counts under `category` until the Buffer is destroyed. Memory of
  // MemoryCategory::host lies on the host. Kernels can use it too, at the speed of the link between host and device.
  Buffer allocate(std::size_t bytes, MemoryCategory category);
  const MemoryMeter& memory() const { return *memory_; }

  virtual std::unique_ptr<Stream> make_stream() = 0;

  static constexpr std::size_t kAlignment = 256;

 protected:
  friend class Buffer;
  // Returns zero-filled memory. Throws Error{does_not_fit} if there is not enough.
  virtual void* acquire(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) = 0;
  // The same for host memory.
  virtual void* acquire_host(std::size_t bytes) { return acquire(bytes); }
  virtual void release_host(void* memory, std::size_t bytes) { release(memory, bytes); }

 private:
  std::unique_ptr<MemoryMeter> memory_ = std::make_unique<MemoryMeter>();
};

// Makes a device. `index` selects one of the machine's GPUs; the other kinds have one device. The thread that makes a device
// must also enqueue its work, so ranks that are threads of one process make one device each. Throws Error{config} for cuda if
// this build has no CUDA backend or this machine has no such GPU. A meta device made here stands for the CPU.
std::unique_ptr<Device> make_device(DeviceKind kind, int index = 0);

// Floating-point operations and bytes of memory traffic. They are what the algorithm needs; caches are not considered.
struct Work {
  double flops = 0;
  double fp8_flops = 0;  // the part of `flops` that FP8 GEMMs compute
  double bytes = 0;
  std::array<std::int64_t, 3> shape{};  // for a GEMM: M, N, K, which distinguish GEMMs in a profile; otherwise 0
  std::string_view group = {};          // for a collective: the name of its group; must outlive the stream's profile
  bool joins = false;                   // runs in the same launch as the op before it
  Work& operator+=(const Work& other) {
    flops += other.flops;
    fp8_flops += other.fp8_flops;
    bytes += other.bytes;
    return *this;
  }
};

// The total over all calls of an op in a profile.
struct OpTime {
  const char* op = "";
  Work work;
  std::int64_t calls = 0;
  double seconds = 0;
};

// Makes a meta device that counts the memory and work that the program would need on a device of kind `target`.
std::unique_ptr<Device> make_meta_device(DeviceKind target);
// Makes a meta device whose streams simulate time while they are profiled. An op takes as
// long as `seconds` returns, work that waits for an event starts after the event, and streams
// run in parallel. A profile contains the times of the ops without the waits between them.
using OpSeconds = std::function<double(const char* op, const Work& work)>;
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds);

// A point in a stream's sequence of work.
class Event {
 public:
  virtual ~Event() = default;
  // The time of the event, on streams that simulate time; otherwise 0.
  virtual double seconds() const { return 0; }
};

// Seconds in which a stream waited for other ranks.
struct Waits {
  double all = 0;
  double stages = 0;  // the part of `all` that waited for other stages of a pipeline: see StageWaits
};

// A sequence of work that a device executes in order. The functions of
// kernels/ enqueue ops. On the CPU, an op has run when its function returns.
class Stream {
 public:
  explicit Stream(Device& device) : device_(device) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  DeviceKind kind() const { return device_.kind(); }
  DeviceKind target() const { return device_.target(); }

  // Each op calls this once before it enqueues its work. `op` is a string literal.
  void count(const char* op, const Work& work) {
    work_ += work;
    if (profile_) mark(op, work);
  }
  // The sum of all work since construction or reset_work().
  const Work& work() const { return work_; }
  void reset_work() { work_ = {}; }

  virtual std::unique_ptr<Event> record() = 0;  // an event after all work enqueued so far
  virtual void wait(const Event& event) = 0;    // later work of this stream starts after `event`; the host does not wait
  virtual void synchronize() = 0;               // the host waits until the stream has executed everything
  // Calls a function on the CPU in the order of the stream. Kernels and groups of the CPU run in this way. The function owns
  // its operands, or refers to objects that exist until the stream has executed it. Throws Error{internal} on other devices.
  virtual void call(std::function<void()> function);
  // These copy or zero bytes in stream order. A copy to or from page-locked memory (MemoryCategory::host, PageLock) does not make
  // the host wait, and that memory must stay as it is until the copy is done. Other memory that copy_to_device() reads may change
  // when the call returns. Memory that copy_to_host() writes must exist until the stream has executed the copy.
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* device, std::size_t bytes) = 0;
  // Takes a function that waits for background work of the CPU, such as a message that is being sent. A CPU stream calls the
  // function when somebody waits for an event behind this point, or for the stream. Other streams call it at once.
  virtual void finish_later(std::function<void()> finish) { finish(); }

  // Names the work that is enqueued until end_range(), for profilers that show ranges (NVTX). Ranges nest. See TraceRange.
  virtual void begin_range(const std::string&) {}
  virtual void end_range() {}

  // Starts a profile that ends with take_profile(). The time from one op to the next counts for the earlier op, including gaps.
  void start_profile();
  // Waits for the stream and returns the profile. Ops with the same name,
  // shape and group are added up, in the order of their first call.
  std::vector<OpTime> take_profile();

  // begin_wait and end_wait enclose work of this stream that only waits for other ranks. The pairs may be nested.
  void begin_wait() {
    if (!waits_ || depth_++ > 0) return;
    stamp();
    wait_is_for_stages_.push_back(for_stages_ ? 1 : 0);
  }
  void end_wait() {
    if (waits_ && --depth_ == 0) stamp();
  }
  // Waits for an event of the communication stream. A profile shows the wait as an op of its own.
  void wait_for_ranks(const Event& event) {
    count("wait for ranks", {});
    begin_wait();
    wait(event);
    end_wait();
  }
  // Measures the time of these waits until take_waits(). Must not be called during a profile.
  void start_waits();
  // Waits for the stream and returns the sums of the waits.
  Waits take_waits();

 protected:
  struct Mark {
    const char* op;
    Work work;
  };
  // The ops of the profile so far.
  const std::vector<Mark>& marks() const { return marks_; }

  // Enqueues a time stamp. take_stamps() returns the times in seconds since the first stamp; the stream must have executed them.
  virtual void stamp() = 0;
  virtual std::vector<double> take_stamps() = 0;

 private:
  friend class StageWaits;
  void mark(const char* op, const Work& work);

  Device& device_;
  Work work_;
  bool profile_ = false, waits_ = false;
  int depth_ = 0;  // nesting depth of begin_wait
  bool for_stages_ = false;
  std::vector<char> wait_is_for_stages_;  // of each wait since start_waits()
  std::vector<Mark> marks_;
};

// The waits that a stream begins during the lifetime of this object are for other stages of a pipeline.
class StageWaits {
 public:
  explicit StageWaits(Stream& stream) : stream_(stream), before_(std::exchange(stream.for_stages_, true)) {}
  ~StageWaits() { stream_.for_stages_ = before_; }
  StageWaits(const StageWaits&) = delete;
  StageWaits& operator=(const StageWaits&) = delete;

 private:
  Stream& stream_;
  bool before_;
};

// Names the work that a stream receives during the lifetime of this object.
class TraceRange {
 public:
  TraceRange(Stream& stream, const std::string& name) : stream_(stream) { stream_.begin_range(name); }
  ~TraceRange() { stream_.end_range(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Stream& stream_;
};

}  // namespace octet
