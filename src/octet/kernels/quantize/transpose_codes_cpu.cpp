#include <algorithm>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kSquare = 64;  // codes of both sides of a square stay in the first cache

}  // namespace

void transpose_codes(const Quantized& q) {
  const std::int64_t rows = q.rowwise.rows(), cols = q.rowwise.shape[1], width = q.columnwise.shape[1];
  const std::uint8_t* const from = q.rowwise.as_bytes();
  std::uint8_t* const to = q.columnwise.as_bytes();
  parallel_ranges(ceil_div(cols, kSquare), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t col = first * kSquare; col < std::min(cols, last * kSquare); col += kSquare) {
      const std::int64_t end_col = std::min(cols, col + kSquare);
      for (std::int64_t row = 0; row < rows; row += kSquare) {
        const std::int64_t end_row = std::min(rows, row + kSquare);
        for (std::int64_t c = col; c < end_col; ++c) {
          for (std::int64_t r = row; r < end_row; ++r) to[c * q.columnwise.row_stride + r] = from[r * q.rowwise.row_stride + c];
        }
      }
      for (std::int64_t c = col; c < end_col; ++c)
        std::fill(to + c * q.columnwise.row_stride + rows, to + c * q.columnwise.row_stride + width, std::uint8_t{0});
    }
  });
  if (!is_square(q.tile)) return;
  if (q.tile == ScaleTile::tensor) {
    *q.columnwise_scale_inv.as<float>() = *q.rowwise_scale_inv.as<float>();
    return;
  }
  for (std::int64_t r = 0; r < q.rowwise_scale_inv.rows(); ++r) {
    for (std::int64_t c = 0; c < q.rowwise_scale_inv.shape[1]; ++c) {
      q.columnwise_scale_inv.as<float>()[c * q.columnwise_scale_inv.row_stride + r] =
          q.rowwise_scale_inv.as<float>()[r * q.rowwise_scale_inv.row_stride + c];
    }
  }
}

void complete_codes(const QuantizeEpilogue& to) {
  const auto complete = [](const Quantized& q, float scale) {
    *q.rowwise_scale_inv.as<float>() = 1.0f / scale;
    if (q.columnwise) transpose_codes(q);
  };
  if (!to.groups) return complete(to.out, *to.scale);
  for (const GroupExtent& part : extents_of(to.groups)) {
    complete(group_of(to.out, part, part.padded()), to.scale[static_cast<std::int64_t>(part.group) * to.scale_stride]);
  }
}

}  // namespace octet::kernels::cpu
