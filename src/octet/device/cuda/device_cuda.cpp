#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/device/cuda/cuda.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/format.h"

namespace octet {
namespace {

using cuda::check;

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// A ring of page-locked buffers for copies in stream order. A copy from or to pageable host memory would make the host wait, and
// the driver would copy it in pieces, one after another. The slots are used in turn; reusing a slot waits for the slot's previous
// copy.
class StagingRing {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
  static constexpr std::size_t kSlots = kStagingBytes / kSlotBytes;

  StagingRing() {
    check(cudaMallocHost(&memory_, kSlotBytes * kSlots), "cudaMallocHost");
    for (cudaEvent_t& event : events_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~StagingRing() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFreeHost(memory_);
  }
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Calls `enqueue(slot)` with kSlotBytes of unused memory; `enqueue` puts the copy that uses it on `stream`.
  template <class Enqueue>
  void use(cudaStream_t native, Enqueue enqueue) {
    const std::size_t slot = next_++ % kSlots;
    check(cudaEventSynchronize(events_[slot]), "cudaEventSynchronize");
    enqueue(static_cast<std::byte*>(memory_) + slot * kSlotBytes);
    check(cudaEventRecord(events_[slot], native), "cudaEventRecord");
  }

  // Copies to pageable memory. While threads of the host empty one half of the ring, the GPU fills the other half: one thread
  // alone copies more slowly than the link. Returns when all bytes are at `host`.
  void drain(cudaStream_t native, std::byte* host, const std::byte* device, std::size_t bytes) {
    const std::size_t pieces = (bytes + kSlotBytes - 1) / kSlotBytes, first = next_;
    next_ += pieces;
    const auto slot_of = [&](std::size_t piece) { return (first + piece) % kSlots; };
    const auto memory_of = [&](std::size_t piece) { return static_cast<std::byte*>(memory_) + slot_of(piece) * kSlotBytes; };
    const auto size_of = [&](std::size_t piece) { return std::min(kSlotBytes, bytes - piece * kSlotBytes); };
    std::size_t filled = 0;
    for (std::size_t emptied = 0; emptied < pieces;) {
      for (; filled < std::min(pieces, emptied + kSlots); ++filled) {
        cudaEvent_t const event = events_[slot_of(filled)];
        check(cudaEventSynchronize(event), "cudaEventSynchronize");
        check(cudaMemcpyAsync(memory_of(filled), device + filled * kSlotBytes, size_of(filled), cudaMemcpyDefault, native),
              "cudaMemcpyAsync");
        check(cudaEventRecord(event, native), "cudaEventRecord");
      }
      const std::size_t count = std::min(kSlots / 2, pieces - emptied);
      check(cudaEventSynchronize(events_[slot_of(emptied + count - 1)]), "cudaEventSynchronize");
      parallel_for(static_cast<std::int64_t>(count), [&](std::int64_t i) {
        const std::size_t piece = emptied + static_cast<std::size_t>(i);
        std::memcpy(host + piece * kSlotBytes, memory_of(piece), size_of(piece));
      });
      emptied += count;
    }
  }

 private:
  void* memory_ = nullptr;
  std::array<cudaEvent_t, kSlots> events_{};
  std::size_t next_ = 0;
};

class CudaEvent final : public Event {
 public:
  CudaEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Whether the memory is MemoryCategory::host, or other page-locked memory.
bool is_page_locked(const void* memory) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost;
}

struct HostCopy {
  void* to;
  const void* from;
  std::size_t bytes;
};

void CUDART_CB finish_host_copy(void* argument) {
  const std::unique_ptr<HostCopy> copy(static_cast<HostCopy*>(argument));
  std::memcpy(copy->to, copy->from, copy->bytes);
}

class CudaStream final : public Stream {
 public:
  // The device must be the thread's current device.
  CudaStream(Device& device, int index) : Stream(device), index_(index) {
    check(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() override {
    cudaStreamSynchronize(native_);
    cudaStreamDestroy(native_);
  }
  // CUDA has a current device per thread. Events must be created, and kernels launched, while the stream's device is current.
  cudaStream_t native() const {
    check(cudaSetDevice(index_), "cudaSetDevice");
    return native_;
  }

  std::unique_ptr<Event> record() override {
    const cudaStream_t at = native();
    auto event = std::make_unique<CudaEvent>();
    check(cudaEventRecord(event->get(), at), "cudaEventRecord");
    return event;
  }
  void wait(const Event& event) override {
    check(cudaStreamWaitEvent(native_, static_cast<const CudaEvent&>(event).get(), 0), "cudaStreamWaitEvent");
  }
  void synchronize() override { check(cudaStreamSynchronize(native()), "cudaStreamSynchronize"); }
  void begin_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end_range() override { nvtxRangePop(); }

  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return;
    const cudaStream_t at = native();  // a thread that only copies has not chosen a device yet
    if (is_page_locked(host)) return copy(device, host, bytes);
    for (std::size_t done = 0; done < bytes; done += StagingRing::kSlotBytes) {
      const std::size_t piece = std::min(StagingRing::kSlotBytes, bytes - done);
      staging_.use(at, [&](void* slot) {
        std::memcpy(slot, static_cast<const std::byte*>(host) + done, piece);
        check(cudaMemcpyAsync(static_cast<std::byte*>(device) + done, slot, piece, cudaMemcpyDefault, at), "cudaMemcpyAsync");
      });
    }
  }
  // A copy that fits in a slot does not make the host wait. A larger copy is complete when the function returns.
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    const cudaStream_t at = native();  // a thread that only copies has not chosen a device yet
    if (is_page_locked(host)) return copy(host, device, bytes);
    if (bytes > StagingRing::kSlotBytes) {
      return staging_.drain(at, static_cast<std::byte*>(host), static_cast<const std::byte*>(device), bytes);
    }
    staging_.use(at, [&](void* slot) {
      check(cudaMemcpyAsync(slot, device, bytes, cudaMemcpyDefault, native_), "cudaMemcpyAsync");
      auto copy = std::make_unique<HostCopy>(HostCopy{host, slot, bytes});
      check(cudaLaunchHostFunc(native_, finish_host_copy, copy.get()), "cudaLaunchHostFunc");
      copy.release();  // finish_host_copy owns it
    });
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native()), "cudaMemcpyAsync");
  }
  void zero(void* device, std::size_t bytes) override {
    if (bytes == 0) return;
    count("zero", {.bytes = static_cast<double>(bytes)});
    check(cudaMemsetAsync(device, 0, bytes, native()), "cudaMemsetAsync");
  }

 protected:
  void stamp() override {
    const cudaStream_t at = native();
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    check(cudaEventRecord(event, at), "cudaEventRecord");
    stamps_.push_back(event);
  }
  std::vector<double> take_stamps() override {
    std::vector<double> seconds;
    for (cudaEvent_t event : stamps_) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, stamps_.front(), event), "cudaEventElapsedTime");
      seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    for (cudaEvent_t event : stamps_) check(cudaEventDestroy(event), "cudaEventDestroy");
    stamps_.clear();
    return seconds;
  }

 private:
  std::vector<cudaEvent_t> stamps_;
  int index_;
  cudaStream_t native_ = nullptr;
  StagingRing staging_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    demand(found == cudaSuccess && count > 0, ExitCode::config,
           "run.device = \"cuda\": this machine has no GPU that CUDA can use (", cudaGetErrorString(found), ")");
    demand(index >= 0 && index < count, ExitCode::config, "run.device = \"cuda\": there is no GPU ", index, ": this machine has ",
           count, ", counted from 0");
    enter();
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index), "cudaDeviceGetAttribute");
  }
  // Makes this the current device of the thread.
  void enter() const { check(cudaSetDevice(index_), "cudaSetDevice"); }
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::unique_ptr<Stream> make_stream() override {
    enter();
    return std::make_unique<CudaStream>(*this, index_);
  }

  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  std::unordered_map<std::type_index, std::unique_ptr<cuda::Extension>> extensions;

 protected:
  void* acquire(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    enter();
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      fail(ExitCode::does_not_fit, "cuda: cannot allocate ", bytes, " bytes; ", free, " of ", total, " are free");
    }
    check(code, "cudaMalloc");
    check(cudaMemset(memory, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // streams do not wait for the default stream
    return memory;
  }
  void release(void* memory, std::size_t) override { cudaFree(memory); }
  // Threads touch huge pages before they are locked. That is many times as fast as cudaMallocHost, which locks small pages one by
  // one.
  void* acquire_host(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    enter();
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) refuse_host(bytes);
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    constexpr std::size_t kStretch = std::size_t{64} << 20;
    parallel_for(ceil_div(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kStretch)), [&](std::int64_t i) {
      const std::size_t begin = static_cast<std::size_t>(i) * kStretch;
      std::memset(static_cast<std::byte*>(memory) + begin, 0, std::min(bytes - begin, kStretch));
    });
    if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess) return memory;
    cudaGetLastError();
    ::munmap(memory, bytes);
    refuse_host(bytes);
  }
  void release_host(void* memory, std::size_t bytes) override {
    if (!memory) return;
    cudaHostUnregister(memory);
    ::munmap(memory, bytes);
  }

 private:
  [[noreturn]] static void refuse_host(std::size_t bytes) {
    fail(ExitCode::config, "optimizer.offload = true: this machine has no ", telemetry::format_bytes(bytes),
         " of memory left that can be page-locked; `ulimit -l` may limit it");
  }

  int index_;
  int multiprocessors_ = 0;
};

}  // namespace

namespace cuda {

void check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) fail(ExitCode::internal, call, ": ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

cudaStream_t native_stream(Stream& stream) {
  require(stream.kind() == DeviceKind::cuda, "a CUDA kernel needs a CUDA queue, not one of device ", name_of(stream.kind()));
  return static_cast<CudaStream&>(stream).native();
}

int multiprocessors_of(Stream& stream) { return static_cast<CudaDevice&>(stream.device()).multiprocessors(); }

int index_of(Device& device) {
  require(device.kind() == DeviceKind::cuda, "device ", name_of(device.kind()), " is not a GPU");
  return static_cast<CudaDevice&>(device).index();
}

std::unique_ptr<Extension>& extension_slot(Device& device, std::type_index type) {
  static_cast<CudaDevice&>(device).enter();  // a library handle belongs to the device on which it is created
  return static_cast<CudaDevice&>(device).extensions[type];
}

}  // namespace cuda

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool cuda_is_available() { return cuda_device_count() > 0; }

CudaProperties cuda_properties(int index) {
  if (index >= cuda_device_count()) return {};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {.name = properties.name,
          .compute_capability = properties.major * 10 + properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = properties.totalGlobalMem,
          .driver_version = version_text(driver),
          .runtime_version = version_text(runtime)};
}

std::size_t cuda_free_memory(int index) {
  std::size_t free = 0, total = 0;
  int current = 0;  // the thread's current device, on which its streams rely
  check(cudaGetDevice(&current), "cudaGetDevice");
  check(cudaSetDevice(index), "cudaSetDevice");
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  check(cudaSetDevice(current), "cudaSetDevice");
  return free;
}

}  // namespace octet
