// Copies of tensors in host memory, in the layout in which files store them.
#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet {

// Owns its elements, which are row-major without gaps.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, Shape shape) : dtype_(dtype), shape_(shape), bytes_(bytes_of(dtype, shape)) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::byte* data() { return bytes_.data(); }
  std::size_t bytes() const { return bytes_.size(); }
  Tensor view() const { return {const_cast<std::byte*>(bytes_.data()), dtype_, shape_}; }

 private:
  DType dtype_ = DType::f32;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

// Copies a tensor of any device to the host, with its rows packed. Waits for the stream.
HostTensor to_host(Stream& stream, const Tensor& tensor);

// A quantised x [rows, cols] as `octet quantize` and dumps write it: without padding, and with scales in row order.
//   codes      [rows, cols]
//   scale_inv  by tile: tensor [1]; row [rows, 1]; block_1x128 [rows, ceil(cols/128)];
//              block_128x128 [ceil(rows/128), ceil(cols/128)]; mx_1x32 [rows, ceil(cols/32)]
//   columnwise, columnwise_scale_inv  the same for xᵀ [cols, rows]
// A part that `q` does not have is empty. Waits for the stream.
struct HostQuantized {
  HostTensor codes, scale_inv, columnwise, columnwise_scale_inv;
};
HostQuantized to_host(Stream& stream, const Quantized& q, std::int64_t rows, std::int64_t cols);

}  // namespace octet
