#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "octet/device/cuda/gpu_sensors.h"
#include "octet/device/cuda/gpu_state.h"
#include "octet/device/cuda/nvml.h"

namespace octet {
namespace {

__global__ void kernel_of_this_build() {}

// nvcc's list is of 900 for sm_90.
std::vector<int> architectures_of_this_build() {
  std::vector<int> list;
  for (const int architecture : {__CUDA_ARCH_LIST__}) list.push_back(architecture / 10);
  return list;
}

// The runtime has loaded the driver's library already if there is a GPU; it has no name for this attribute.
std::optional<bool> multicast_of(int index) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!driver) return std::nullopt;
  const auto get = reinterpret_cast<decltype(&cuDeviceGetAttribute)>(::dlsym(driver, "cuDeviceGetAttribute"));
  int value = 0;
  const bool known = get && get(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, index) == CUDA_SUCCESS;
  ::dlclose(driver);
  return known ? std::optional(value != 0) : std::nullopt;
}

GpuState state_of(int index) {
  GpuState gpu;
  const auto failed = [&](cudaError_t code) {
    if (code == cudaSuccess) return false;
    cudaGetLastError();
    if (gpu.error.empty()) gpu.error = cudaGetErrorString(code);
    return true;
  };
  cudaDeviceProp properties{};
  if (failed(cudaGetDeviceProperties(&properties, index))) return gpu;
  gpu.name = properties.name;
  gpu.compute_capability = properties.major * 10 + properties.minor;
  gpu.memory_bytes = properties.totalGlobalMem;
  gpu.bus_id = cuda_bus_id(index);
  gpu.multicast = multicast_of(index);

  if (failed(cudaSetDevice(index))) return gpu;
  std::size_t total = 0;
  if (failed(cudaMemGetInfo(&gpu.memory_free_bytes, &total))) return gpu;
  cudaFuncAttributes attributes{};
  const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel_of_this_build);
  gpu.has_code = code == cudaSuccess;
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
  } else {
    failed(code);
  }
  return gpu;
}

}  // namespace

std::string cuda_bus_id(int index) {
  char bus_id[32] = "";
  const bool known = cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) == cudaSuccess;
  if (!known) cudaGetLastError();
  return known ? bus_id : "";
}

CudaState cuda_state() {
  CudaState state;
  state.architectures = architectures_of_this_build();
  if (cudaDriverGetVersion(&state.driver_cuda) != cudaSuccess) state.driver_cuda = 0;
  if (cudaRuntimeGetVersion(&state.runtime_cuda) != cudaSuccess) state.runtime_cuda = CUDART_VERSION;
  int count = 0, current = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) {
    const bool restore = cudaGetDevice(&current) == cudaSuccess;
    for (int index = 0; index < count; ++index) state.gpus.push_back(state_of(index));
    if (restore) cudaSetDevice(current);
  } else {
    state.error = cudaGetErrorString(code);
    cudaGetLastError();
  }
  cuda::ask_nvml(state);
  return state;
}

}  // namespace octet
