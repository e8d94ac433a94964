// Tensors that one launch reads or overwrites.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/device/device.h"
#include "octet/kernels/op_table.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

class TensorList {
 public:
  struct Item {
    void* data;
    std::int64_t count;  // elements
    DType dtype;
  };
  static constexpr std::int64_t kChunk = 1 << 15;  // elements of a chunk; the last one of a tensor may have fewer

  TensorList() = default;
  // Any shapes and dtypes, contiguous. The list may be empty, and so may tensors.
  TensorList(Device& device, std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    std::vector<Item> items;
    std::vector<std::int64_t> chunks;
    for (const Tensor& x : tensors_) {
      require(x.contiguous(), "a list of tensors: ", x.shape, " must be contiguous, its row stride is ", x.row_stride);
      items.push_back({x.data, x.elements(), x.dtype});
      chunks.push_back(ceil_div(x.elements(), kChunk));
      elements_ += static_cast<double>(x.elements());
      bytes_ += static_cast<double>(x.bytes());
    }
    table_ = OpTable<Item>(device, items, chunks);
  }

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const OpTable<Item>& table() const { return table_; }
  // The numbers of elements and bytes of all tensors together.
  double elements() const { return elements_; }
  double bytes() const { return bytes_; }

 private:
  std::vector<Tensor> tensors_;
  OpTable<Item> table_;
  double elements_ = 0, bytes_ = 0;
};

}  // namespace octet::kernels
