// Folders, hand-made files and device memory for the tests of checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "octet/base/require.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::checkpoint {

using testing::contains;
using testing::error_of;
using testing::names_in;
using testing::TemporaryFolder;

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns a safetensors file with any header and data, by the definition of the format.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFF));
  return file + header + data;
}

// Tensors on the CPU device. They live as long as this object.
class Memory {
 public:
  Memory() : device_(make_device(DeviceKind::cpu)), stream_(device_->make_stream()) {}

  Stream& stream() { return *stream_; }
  Tensor tensor(DType dtype, Shape shape) {
    buffers_.push_back(device_->allocate(std::max<std::size_t>(1, bytes_of(dtype, shape)), MemoryCategory::weights));
    return view(buffers_.back(), dtype, shape);
  }
  // Returns a tensor whose element i is first + i.
  Tensor counting(const Shape& shape, std::int32_t first = 0) {
    const Tensor result = tensor(DType::i32, shape);
    for (std::int64_t i = 0; i < result.elements(); ++i) result.as<std::int32_t>()[i] = first + static_cast<std::int32_t>(i);
    return result;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
};

}  // namespace octet::checkpoint
