#include <algorithm>
#include <array>
#include <cstring>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/blocks_cpu.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kTaskRows = 512;  // rows per task: a multiple of the height of every tile except a whole column
static_assert(kTaskRows % 128 == 0 && kPanelCols == ColumnScales::kColumns);

// Columns [col, col + width), quantised from top to bottom, tile by tile.
class Stripe {
 public:
  Stripe(const Tensor& x, const QuantSpec& spec, const Quantized& out, std::int64_t col)
      : source_(x), spec_(spec), out_(out), col_(col), width_(std::min(kPanelCols, x.shape[1] - col)) {}

  // Quantises tile `k` of each column: rows [begin, end).
  void quantize(std::int64_t k, std::int64_t begin, std::int64_t end) {
    std::array<Magnitude, kPanelCols> amax{};
    for (std::int64_t row = begin; row < end; row += kPanelRows) {
      const std::int64_t height = std::min(kPanelRows, end - row);
      const Source::Block block = source_.block(row, col_, height, width_, buffer_.data());
      amax_of_columns(block.data, block.stride, size(height), size(width_), amax.data());
    }
    ColumnScales scales;
    for (std::int64_t c = 0; c < width_; ++c) {
      const float largest = to_float(amax[size(c)]);
      scales.set(
          size(c), largest,
          make_scale(largest, spec_, out_.columnwise_scale_inv, scale_index(out_.columnwise_scale_inv, spec_.tile, col_ + c, k)));
    }
    for (std::int64_t row = begin; row < end; row += kPanelRows) {
      const std::int64_t height = std::min(kPanelRows, end - row);
      const Source::Block block = source_.block(row, col_, height, width_, buffer_.data());
      cast_columns(spec_.format, block.data, block.stride, size(height), size(width_), scales, panel_.codes(), Panel::kStride);
      panel_.store(row, col_, height, width_, {}, out_.columnwise);
    }
  }

 private:
  Source source_;
  const QuantSpec& spec_;
  const Quantized& out_;
  std::int64_t col_, width_;
  Buffer16<size(kPanelRows* kPanelCols)> buffer_;
  Panel panel_;
};

}  // namespace

void quantize_along_columns(const Tensor& x, const QuantSpec& spec, const Quantized& out) {
  const std::int64_t rows = x.rows(), cols = x.shape[1];
  const bool whole = spec.tile == ScaleTile::row;
  const std::int64_t tile = whole ? rows : tile_width(spec.tile);
  const std::int64_t stripes = ceil_div(cols, kPanelCols), tasks_down = whole ? 1 : ceil_div(rows, kTaskRows);
  parallel_for(stripes * tasks_down, [&](std::int64_t task) {
    Stripe stripe(x, spec, out, task % stripes * kPanelCols);
    if (whole) return stripe.quantize(0, 0, rows);
    const std::int64_t first = task / stripes * kTaskRows, last = std::min(rows, first + kTaskRows);
    for (std::int64_t row = first; row < last; row += tile) stripe.quantize(row / tile, row, std::min(last, row + tile));
  });
}

void pad_transposed(const Tensor& x, const Quantized& out) {
  const std::int64_t rows = x.rows(), cols = x.shape[1], width = out.columnwise.shape[1];
  if (rows == width) return;
  for (std::int64_t c = 0; c < cols; ++c) {
    std::memset(out.columnwise.as_bytes() + c * out.columnwise.row_stride + rows, 0, size(width - rows));
  }
  // A tile of 128 never consists only of padding, because rows are padded to a multiple of 128.
  if (out.tile != ScaleTile::mx_1x32) return;
  constexpr std::uint8_t kOne = 127;
  const std::int64_t first = ceil_div(rows, 32), last = ceil_div(width, 32);
  for (std::int64_t c = 0; c < cols; ++c) {
    std::memset(out.columnwise_scale_inv.as_bytes() + c * out.columnwise_scale_inv.row_stride + first, kOne, size(last - first));
  }
}

}  // namespace octet::kernels::cpu
