// What the kernels of the CUDA backend share: the stream behind a queue, checks of every code, and library handles that live as
// long as the device. Included by x_cuda.cpp and x_cuda.cu alone.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <typeindex>
#include <utility>

#include "octet/base/require.h"
#include "octet/device/device.h"

namespace octet::cuda {

// Throws Error{internal} with the name of the call and CUDA's words.
void check(cudaError_t code, const char* call);
// After a kernel launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Makes the queue's device the thread's current one, where kernels are launched.
cudaStream_t stream_of(Queue& queue);
int multiprocessors_of(Queue& queue);
// Which of the machine's GPUs.
int index_of(Device& device);

// State of a library (a handle, a cache of plans) that is made at its first use on a device and lives as long as the device.
class Extension {
 public:
  virtual ~Extension() = default;
};
std::unique_ptr<Extension>& extension_slot(Device& device, std::type_index type);

// T derives from Extension and is constructed from the device.
template <class T>
T& extension(Queue& queue) {
  std::unique_ptr<Extension>& slot = extension_slot(queue.device(), typeid(T));
  if (!slot) slot = std::make_unique<T>(queue.device());
  return static_cast<T&>(*slot);
}

}  // namespace octet::cuda
