// Linked where the CUDA backend is not built.
#include "octet/base/require.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/device/cuda/gpu_sensors.h"
#include "octet/device/cuda/gpu_state.h"
#include "octet/device/page_lock.h"

namespace octet {

std::unique_ptr<Device> make_cuda_device(int) {
  fail(
      ExitCode::config,
      "device cuda: this build of octet has no CUDA backend; compute on the device cpu, or use a build of the CMake preset cuda");
}

bool cuda_is_available() { return false; }
int cuda_device_count() { return 0; }
CudaProperties cuda_properties(int) { return {}; }
std::size_t cuda_free_memory(int) { return 0; }
CudaState cuda_state() { return {}; }
std::string cuda_bus_id(int) { return ""; }
PageLock::PageLock(Device&, void*, std::size_t) {}
PageLock::~PageLock() = default;

}  // namespace octet
