#include "octet/tensor/host_tensor.h"

#include <cstring>

namespace octet {
namespace {

// Copies the scales of an operand [rows, k] to the host, from the layout that GEMMs read into the layout of files.
HostTensor scales_to_host(Queue& queue, const Tensor& scales, ScaleTile tile, std::int64_t rows, std::int64_t k) {
  if (!scales) return {};
  switch (tile) {
    case ScaleTile::tensor:
    case ScaleTile::block_128x128: return to_host(queue, scales);
    case ScaleTile::row: return to_host(queue, Tensor(scales.data, scales.dtype, {rows, 1}));
    case ScaleTile::mx_1x32: return to_host(queue, scales.slice_cols(0, ceil_div(k, 32)));
    case ScaleTile::block_1x128: {
      const HostTensor by_block = to_host(queue, scales);
      const std::int64_t blocks = ceil_div(k, 128);
      HostTensor by_row(DType::f32, {rows, blocks});
      const float* from = by_block.view().as<float>();
      float* to = by_row.view().as<float>();
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t b = 0; b < blocks; ++b) to[r * blocks + b] = from[b * rows + r];
      }
      return by_row;
    }
  }
  return {};
}

}  // namespace

HostTensor to_host(Queue& queue, const Tensor& tensor) {
  HostTensor result(tensor.dtype, tensor.shape);
  if (tensor.contiguous()) {
    queue.copy_to_host(result.data(), tensor.data, tensor.bytes());
    queue.synchronize();
    return result;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(tensor.cols()) * size_of(tensor.dtype);
  for (std::int64_t r = 0; r < tensor.rows(); ++r) {
    queue.copy_to_host(result.data() + static_cast<std::size_t>(r) * row_bytes, tensor.slice_rows(r, r + 1).data, row_bytes);
  }
  queue.synchronize();
  return result;
}

HostQuantized to_host(Queue& queue, const Quantized& q, std::int64_t rows, std::int64_t cols) {
  HostQuantized result;
  if (q.codes) {
    result.codes = to_host(queue, q.codes);
    result.scale_inv = scales_to_host(queue, q.scale_inv, q.tile, rows, cols);
  }
  if (q.codes_t) {
    result.codes_t = to_host(queue, q.codes_t.slice_cols(0, rows));
    result.scale_inv_t = scales_to_host(queue, q.scale_inv_t, q.tile, cols, rows);
  }
  return result;
}

}  // namespace octet
