#include "octet/tensor/host_tensor.h"

#include <cstring>

namespace octet {
namespace {

// Copies the scales of an operand [rows, k] to the host, from the layout that GEMMs read into the layout of files.
HostTensor scales_to_host(Stream& stream, const Tensor& scales, ScaleTile tile, std::int64_t rows, std::int64_t k) {
  if (!scales) return {};
  switch (tile) {
    case ScaleTile::tensor:
    case ScaleTile::block_128x128:
      return to_host(stream, scales);
    case ScaleTile::row:
      return to_host(stream, Tensor(scales.data, scales.dtype, {rows, 1}));
    case ScaleTile::mx_1x32:
      return to_host(stream, scales.slice_cols(0, ceil_div(k, 32)));
    case ScaleTile::block_1x128: {
      const HostTensor by_block = to_host(stream, scales);
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

// The transpose of codes [rows, cols].
HostTensor transposed(const HostTensor& codes, std::int64_t rows, std::int64_t cols) {
  HostTensor result(codes.dtype(), {cols, rows});
  const std::uint8_t* const from = codes.view().as_bytes();
  std::uint8_t* const to = result.view().as_bytes();
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  }
  return result;
}

}  // namespace

HostTensor to_host(Stream& stream, const Tensor& tensor) {
  HostTensor result(tensor.dtype, tensor.shape);
  if (tensor.contiguous()) {
    stream.copy_to_host(result.data(), tensor.data, tensor.bytes());
    stream.synchronize();
    return result;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(tensor.cols()) * size_of(tensor.dtype);
  for (std::int64_t r = 0; r < tensor.rows(); ++r) {
    stream.copy_to_host(result.data() + static_cast<std::size_t>(r) * row_bytes, tensor.slice_rows(r, r + 1).data, row_bytes);
  }
  stream.synchronize();
  return result;
}

HostQuantized to_host(Stream& stream, const Quantized& q, std::int64_t rows, std::int64_t cols) {
  HostQuantized result;
  if (q.rowwise) {
    result.codes = to_host(stream, q.rowwise);
    result.scale_inv = scales_to_host(stream, q.rowwise_scale_inv, q.tile, rows, cols);
  }
  if (q.columnwise || q.rowwise_serves_both()) {
    result.columnwise = q.columnwise ? to_host(stream, q.columnwise.slice_cols(0, rows)) : transposed(result.codes, rows, cols);
    result.columnwise_scale_inv = scales_to_host(stream, q.columnwise_scale_inv, q.tile, cols, rows);
  }
  return result;
}

}  // namespace octet
