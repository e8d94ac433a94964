#pragma once

#include <memory>
#include <string>

#include "octet/device/device.h"

namespace octet {

// Whether this program was built with the CUDA backend. Code of x.cpp files names CUDA kernels below `if constexpr
// (kCudaBackend)`.
inline constexpr bool kCudaBackend = OCTET_HAS_CUDA != 0;

std::unique_ptr<Device> make_cuda_device(int index);
// Whether this build has the CUDA backend and this machine a GPU it can use.
bool cuda_is_available();
// GPUs that this process can use.
int cuda_device_count();

// What a GPU is, without making a context on it; empty and zero where there is none.
struct CudaProperties {
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  std::string driver_version, runtime_version;
};
CudaProperties cuda_properties(int index = 0);
// What it can still give, with a context of this process on it.
std::size_t cuda_free_memory(int index);

}  // namespace octet
