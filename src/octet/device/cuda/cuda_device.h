#pragma once

#include <memory>
#include <string>

#include "octet/device/device.h"

namespace octet {

// Whether this program was built with the CUDA backend. Files named x.cpp refer to CUDA kernels only inside `if constexpr
// (kCudaBackend)`.
inline constexpr bool kCudaBackend = OCTET_HAS_CUDA != 0;

// The page-locked host memory of each stream: 16 copies of 1 MiB under way. A GPU writes 1 MiB in about 20 us, longer than a
// launch takes, so large copies run at full speed. More memory would only hold back larger pauses of the thread that empties it.
inline constexpr std::size_t kStagingBytes = std::size_t{16} << 20;

std::unique_ptr<Device> make_cuda_device(int index);
// Whether this build has the CUDA backend and this machine has a GPU that it can use.
bool cuda_is_available();
// The number of GPUs that this process can use.
int cuda_device_count();

// Properties of a GPU, read without creating a CUDA context on it. Empty and zero if there is no such GPU.
struct CudaProperties {
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::string driver_version, runtime_version;
};
CudaProperties cuda_properties(int index = 0);
// The bytes of GPU memory that are free. Creates a context of this process on the GPU.
std::size_t cuda_free_memory(int index);

}  // namespace octet
