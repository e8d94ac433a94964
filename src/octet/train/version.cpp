#include "octet/train/version.h"

#include <fstream>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/attention/attention.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::train {

const char* version() { return OCTET_VERSION; }

std::string version_text() { return concat(version(), " (commit ", commit(), ")"); }

const char* build_name() { return OCTET_BUILD; }

std::string device_name(DeviceKind device) {
  if (device == DeviceKind::cuda) return cuda_properties().name;
  if (device != DeviceKind::cpu) return std::string(name_of(device));
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "CPU";
}

std::string versions_json(DeviceKind device) {
  nlohmann::ordered_json versions = {{"build", build_name()}};
  if (device == DeviceKind::cpu) versions["products"] = product_kernels(device);
  if (device == DeviceKind::cuda) {
    const CudaProperties gpu = cuda_properties();
    versions.update({{"cublaslt", kernels::gemm_library_version()},
                     {"cudnn", kernels::attention_library_version()},
                     {"driver", gpu.driver_version},
                     {"cuda", gpu.runtime_version}});
  }
  return versions.dump();
}

std::string product_kernels(DeviceKind device) {
  if (device != DeviceKind::cpu) return "";
  const std::string tiles = kernels::gemm_tiles_name();
  return concat("OpenBLAS ", kernels::gemm_core_name(), tiles.empty() ? "" : " and ", tiles);
}

}  // namespace octet::train
