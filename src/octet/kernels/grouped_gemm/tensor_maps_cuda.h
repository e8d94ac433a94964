// Descriptors of matrices that TMA reads and writes, and tables that kernels read from device memory.
#pragma once

#include <cuda.h>

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "octet/device/cuda/cuda.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cuda {

// The map of x [rows, cols], FP8, BF16 or F32, whose boxes of `outer` rows and `inner` columns are swizzled by 128 bytes.
// Elements outside of x are zero. Throws Error{internal} if x does not begin at a multiple of 16 bytes, or its rows do not.
CUtensorMap tensor_map(const Tensor& x, int inner, int outer);

template <class T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Tables of addresses that never change. Each is copied to the device at its first use and kept as long as the device. They are
// small and not counted in Device::memory, like those of the CUDA libraries.
class DeviceTables final : public octet::cuda::Extension {
 public:
  explicit DeviceTables(Device&) {}
  ~DeviceTables() override;
  DeviceTables(const DeviceTables&) = delete;
  DeviceTables& operator=(const DeviceTables&) = delete;

  using Build = std::function<void(std::vector<std::byte>&)>;
  // Returns the table of this key, in device memory. `build` appends its bytes at the first call.
  const void* get(Stream& stream, std::vector<std::uint64_t> key, const Build& build);

 private:
  std::map<std::vector<std::uint64_t>, void*> tables_;
};

}  // namespace octet::kernels::cuda
