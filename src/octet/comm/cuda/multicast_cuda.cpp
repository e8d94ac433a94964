#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "octet/comm/multicast.h"
#include "octet/device/cuda/cuda.h"

namespace octet::comm {
namespace {

// Only the type of the function is named: the program must not link against the driver's library.
template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

bool can_use_multicast(int device) {
  cuda::check(cudaSetDevice(device), "cudaSetDevice");
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // loaded by the runtime
  if (!driver) return false;
  const auto attribute = symbol<decltype(cuDeviceGetAttribute)>(driver, "cuDeviceGetAttribute");
  const auto granularity = symbol<decltype(cuMulticastGetGranularity)>(driver, "cuMulticastGetGranularity");
  const auto create = symbol<decltype(cuMulticastCreate)>(driver, "cuMulticastCreate");
  const auto add = symbol<decltype(cuMulticastAddDevice)>(driver, "cuMulticastAddDevice");
  const auto release = symbol<decltype(cuMemRelease)>(driver, "cuMemRelease");

  const auto works = [&] {
    int announced = 0;
    if (!attribute || !granularity || !create || !add || !release) return false;
    if (attribute(&announced, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device) != CUDA_SUCCESS || announced == 0) return false;
    CUmulticastObjectProp properties{};
    properties.numDevices = 2;  // an object needs at least two GPUs, even if only one is added here
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (granularity(&properties.size, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) return false;
    CUmemGenericAllocationHandle object{};
    if (create(&object, &properties) != CUDA_SUCCESS) return false;
    const bool added = add(object, device) == CUDA_SUCCESS;
    return release(object) == CUDA_SUCCESS && added;
  };
  const bool result = works();
  ::dlclose(driver);
  return result;
}

}  // namespace octet::comm
