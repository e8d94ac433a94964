// Tensors copied to the host, as files hold them.
#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet {

// Owns its elements, row-major without gaps.
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

// A copy of a tensor of any device, rows packed. The queue has been synchronised.
HostTensor to_host(Queue& queue, const Tensor& tensor);

// The parts of a quantised x [rows, cols] without padding and with scales in the order of the rows they belong to, as
// `octet quantize` and dumps write them: codes [rows, cols], scale_inv [1], [rows, 1], [rows, ceil(cols/128)],
// [ceil(rows/128), ceil(cols/128)] or [rows, ceil(cols/32)]; the transposed parts likewise of xᵀ. An absent part is empty.
struct HostQuantized {
  HostTensor codes, scale_inv, codes_t, scale_inv_t;
};
HostQuantized to_host(Queue& queue, const Quantized& q, std::int64_t rows, std::int64_t cols);

}  // namespace octet
