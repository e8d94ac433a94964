// Where memory lives and work runs. Three kinds: cpu computes here, cuda on a GPU, meta nowhere: it owns no memory, computes
// nothing and adds up what the same program would allocate and do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "octet/device/buffer.h"

namespace octet {

enum class DeviceKind : std::uint8_t { cpu, cuda, meta };
std::string_view name_of(DeviceKind kind);

class Queue;

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // The kind whose program runs here: the meta device follows that of the device it stands for, and its own kind otherwise.
  virtual DeviceKind target() const { return kind(); }

  // Zero-filled memory, aligned to kAlignment, counted under `category` until the Buffer dies.
  Buffer allocate(std::size_t bytes, MemoryCategory category);
  const MemoryMeter& memory() const { return *memory_; }

  virtual std::unique_ptr<Queue> make_queue() = 0;

  static constexpr std::size_t kAlignment = 256;

 protected:
  friend class Buffer;
  // Zero-filled. Throws Error{does_not_fit} when there is not so much.
  virtual void* acquire(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) = 0;

 private:
  std::unique_ptr<MemoryMeter> memory_ = std::make_unique<MemoryMeter>();
};

// `index`: which of the machine's GPUs; the other kinds have one device. The thread that makes a device enqueues its work: ranks
// that are threads of one process make one each. Throws Error{config} for cuda where this build has no CUDA backend or this
// machine no such GPU. A meta device stands for the CPU.
std::unique_ptr<Device> make_device(DeviceKind kind, int index = 0);

// The floating-point operations and bytes of memory traffic of work, as the algorithm needs them (not as caches see them).
struct Work {
  double flops = 0;
  double fp8_flops = 0;  // the part of `flops` done by FP8 products
  double bytes = 0;
  std::array<std::int64_t, 3> shape{};  // of a product: M, N, K; tells products apart in a profile, else 0
  std::string_view group = {};          // of a collective: whose ranks; outlives the queue's profile
  bool joins = false;                   // in one launch with the op before it
  Work& operator+=(const Work& other) {
    flops += other.flops;
    fp8_flops += other.fp8_flops;
    bytes += other.bytes;
    return *this;
  }
};

// Of a profile: what all calls of an op took.
struct OpTime {
  const char* op = "";
  Work work;
  std::int64_t calls = 0;
  double seconds = 0;
};

// Counts what the program would take and do on a device of kind `target`.
std::unique_ptr<Device> make_meta_device(DeviceKind target);
// The same on queues that keep time while they are profiled: an op takes as long as `seconds` says, what waits for an event comes
// after it, and queues run beside each other. Profiles have the time of the ops alone, without the waiting between them.
using OpSeconds = std::function<double(const char* op, const Work& work)>;
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds);

// A point in a queue's order of work.
class Event {
 public:
  virtual ~Event() = default;
  // When it came, where queues keep time.
  virtual double seconds() const { return 0; }
};

// Work in order. Ops are enqueued by the functions of kernels/; on the CPU they have run when the function returns.
class Queue {
 public:
  explicit Queue(Device& device) : device_(device) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Device& device() const { return device_; }
  DeviceKind kind() const { return device_.kind(); }
  DeviceKind target() const { return device_.target(); }

  // Called by each op once, before it enqueues its work. `op` is a literal.
  void count(const char* op, const Work& work) {
    work_ += work;
    if (profile_) mark(op, work);
  }
  // All work enqueued so far.
  const Work& work() const { return work_; }
  void reset_work() { work_ = {}; }

  virtual std::unique_ptr<Event> record() = 0;    // after all work enqueued so far
  virtual void wait(const Event& event) = 0;      // later work of this queue starts after `event`; the host does not wait
  virtual void synchronize() = 0;                 // the host waits until the queue is empty
  // Copies bytes in queue order. Host memory must stay valid until then.
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* device, std::size_t bytes) = 0;

  // Names what is enqueued until end_range(), for profilers that show it (NVTX); ranges nest. See TraceRange.
  virtual void begin_range(const std::string&) {}
  virtual void end_range() {}

  // From here until take_profile() the time from each op to the next is attributed to it, so gaps belong to the op before them.
  void start_profile();
  // Waits for the queue. Ops of one name, shape and group are added up, in the order of their first call.
  std::vector<OpTime> take_profile();

  // What this queue does for other ranks alone stands between begin_wait and end_wait, which nest: it waits for what they send.
  void begin_wait() {
    if (waits_ && depth_++ == 0) stamp();
  }
  void end_wait() {
    if (waits_ && --depth_ == 0) stamp();
  }
  // Waits for an event of the queue that sends and receives. A profile shows it as an op.
  void wait_for_ranks(const Event& event) {
    count("wait for ranks", {});
    begin_wait();
    wait(event);
    end_wait();
  }
  // From here until take_waits() the waits are timed, outside of a profile.
  void start_waits();
  // Their seconds. Waits for the queue.
  double take_waits();

 protected:
  struct Mark {
    const char* op;
    Work work;
  };
  // Of the profile so far.
  const std::vector<Mark>& marks() const { return marks_; }

  // A moment in the order of the queue, as seconds after the first one, once the queue has got there.
  virtual void stamp() = 0;
  virtual std::vector<double> take_stamps() = 0;

 private:
  void mark(const char* op, const Work& work);

  Device& device_;
  Work work_;
  bool profile_ = false, waits_ = false;
  int depth_ = 0;  // of waits
  std::vector<Mark> marks_;
};

// A named stretch of a queue's work, as long as it lives.
class TraceRange {
 public:
  TraceRange(Queue& queue, const std::string& name) : queue_(queue) { queue_.begin_range(name); }
  ~TraceRange() { queue_.end_range(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Queue& queue_;
};

}  // namespace octet
