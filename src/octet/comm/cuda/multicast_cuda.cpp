#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "octet/comm/multicast.h"
#include "octet/device/cuda/cuda.h"

namespace octet::comm {

bool can_use_multicast(int device) {
  cuda::check(cudaSetDevice(device), "cudaSetDevice");
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // loaded by the runtime
  if (!driver) return false;
  const auto symbol = [&]<class Function>(Function*, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(driver, name));
  };
  const auto attribute = symbol(&cuDeviceGetAttribute, "cuDeviceGetAttribute");
  const auto granularity = symbol(&cuMulticastGetGranularity, "cuMulticastGetGranularity");
  const auto create = symbol(&cuMulticastCreate, "cuMulticastCreate");
  const auto add = symbol(&cuMulticastAddDevice, "cuMulticastAddDevice");
  const auto release = symbol(&cuMemRelease, "cuMemRelease");

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
