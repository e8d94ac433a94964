// Shared by the kernels of the CUDA backend: the cudaStream_t of a Stream, error checks, and library handles that live as long as
// the device. Included only by x_cuda.cpp and x_cuda.cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <typeindex>
#include <utility>

#include "octet/base/require.h"
#include "octet/device/device.h"

namespace octet::cuda {

// Throws Error{internal} with the name of the call and CUDA's description unless `code` is cudaSuccess.
void check(cudaError_t code, const char* call);
// Checks a kernel launch. Call it directly after the launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Makes the stream's device the current device of this thread, as kernel launches require, and returns its stream.
cudaStream_t native_stream(Stream& stream);
// The number of the GPU's multiprocessors. It may size a grid. It must not decide the order of a sum, because bits would then
// depend on the GPU.
int multiprocessors_of(Stream& stream);
// The number of the GPU on this machine.
int index_of(Device& device);

// State of a library (a handle, a cache of plans). It is created at its first use on a device and lives as long as the device.
class Extension {
 public:
  virtual ~Extension() = default;
};
std::unique_ptr<Extension>& extension_slot(Device& device, std::type_index type);

// Returns the device's T. Creates it at the first call. T derives from Extension and is constructed from the device.
template <class T>
T& extension(Stream& stream) {
  std::unique_ptr<Extension>& slot = extension_slot(stream.device(), typeid(T));
  if (!slot) slot = std::make_unique<T>(stream.device());
  return static_cast<T&>(*slot);
}

}  // namespace octet::cuda
