#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "octet/base/clock.h"
#include "octet/device/cuda/cuda.h"
#include "octet/device/page_lock.h"

namespace octet {

PageLock::PageLock(Device& device, void* memory, std::size_t bytes) {
  if (device.kind() != DeviceKind::cuda) return;
  cuda::check(cudaSetDevice(cuda::index_of(device)), "cudaSetDevice");
  for (std::size_t begin = 0; begin < bytes; begin += kStretch) {
    std::byte* const stretch = static_cast<std::byte*>(memory) + begin;
    const std::size_t size = std::min(bytes - begin, kStretch);
    ::madvise(stretch, size, MADV_POPULATE_WRITE);  // outside the driver
    const Clock::time_point start = Clock::now();
    if (cudaHostRegister(stretch, size, cudaHostRegisterDefault) != cudaSuccess) {
      cudaGetLastError();
      return;
    }
    locked_.push_back(stretch);
    std::this_thread::sleep_for(Clock::now() - start);
  }
}

PageLock::~PageLock() {
  for (void* const stretch : locked_) cudaHostUnregister(stretch);
}

}  // namespace octet
