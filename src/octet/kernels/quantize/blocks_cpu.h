// Shared by the CPU's quantisation of tiles: blocks of the source rounded to BF16, panels of codes, and the scale of a tile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "octet/kernels/quantize/cast_rows.h"
#include "octet/numerics/scale.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cpu {

// A panel of codes is cast and transposed within the first-level cache. With 64 rows, a row of the transposed panel is a whole
// cache line. With 256 columns, the processor prefetches the rows of the source.
constexpr std::int64_t kPanelRows = 64, kPanelCols = 256;

constexpr std::size_t size(std::int64_t i) { return static_cast<std::size_t>(i); }

// Memory for N BF16 elements. Unlike an array of BFloat16, it is not zeroed first.
template <std::size_t N>
class Buffer16 {
 public:
  BFloat16* data() { return reinterpret_cast<BFloat16*>(memory_.data()); }

 private:
  alignas(64) std::array<std::byte, N * sizeof(BFloat16)> memory_;
};

// Blocks of a source as BF16. BF16 sources are used in place; F32 sources are rounded into a buffer.
class Source {
 public:
  explicit Source(const Tensor& x) : x_(x) {}

  struct Block {
    const BFloat16* data;
    std::ptrdiff_t stride;
  };
  // Rows [row, row + rows) of columns [col, col + cols). The result may
  // lie in `buffer`, which must have room for rows * cols elements.
  Block block(std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols, BFloat16* buffer) const {
    const std::int64_t first = row * x_.row_stride + col;
    if (x_.dtype == DType::bf16) return {x_.as<BFloat16>() + first, x_.row_stride};
    const float* from = x_.as<float>() + first;
    for (std::int64_t r = 0; r < rows; ++r) round_to_bf16(from + r * x_.row_stride, size(cols), buffer + r * cols);
    return {buffer, cols};
  }

 private:
  const Tensor& x_;
};

// A panel of codes before it is written to codes and columnwise.
class Panel {
 public:
  static constexpr std::ptrdiff_t kStride = kPanelCols;
  std::uint8_t* codes() { return codes_.data(); }

  // Writes rows x cols codes, those of the block at (row, col) of x, to the parts that are present.
  void store(std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols, const Tensor& codes,
             const Tensor& columnwise) const {
    if (codes) {
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(codes.as_bytes() + (row + r) * codes.row_stride + col, codes_.data() + r * kStride, size(cols));
      }
    }
    if (columnwise) {
      transpose_bytes(codes_.data(), kStride, size(rows), size(cols), columnwise.as_bytes() + col * columnwise.row_stride + row,
                      columnwise.row_stride);
    }
  }

 private:
  alignas(64) std::array<std::uint8_t, size(kPanelRows* kPanelCols)> codes_;
};

// Computes the scale of a tile from its amax. Stores 1 / scale (MX: the scale's code) at element `at` of `scales` and returns
// the factor by which values are multiplied before the cast.
inline float make_scale(float amax, const QuantSpec& spec, const Tensor& scales, std::int64_t at) {
  if (spec.tile == ScaleTile::mx_1x32) {
    const std::uint8_t code = mx_scale_code(amax);
    scales.as_bytes()[at] = code;
    return e8m0_reciprocal(code);
  }
  const float scale = scale_from_amax(amax, spec);
  scales.as<float>()[at] = 1.0f / scale;
  return scale;
}

// The index in `scales` of the scale of tile `k` in row `row`, for the rowwise part of an operand.
inline std::int64_t scale_index(const Tensor& scales, ScaleTile tile, std::int64_t row, std::int64_t k) {
  switch (tile) {
    case ScaleTile::tensor:
      return 0;
    case ScaleTile::row:
      return row;
    case ScaleTile::block_1x128:
      return k * scales.row_stride + row;
    case ScaleTile::block_128x128:
      return row / 128 * scales.row_stride + k;
    case ScaleTile::mx_1x32:
      return row * scales.row_stride + k;
  }
  return 0;
}

}  // namespace octet::kernels::cpu
