#include "octet/kernels/quantize/quantize_cpu.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/blocks_cpu.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kSegment = 4096;    // elements of a row processed at a time; a multiple of the width of every tile
constexpr std::int64_t kTask = 64 * 1024;  // approximate number of elements per task
static_assert(kTask % kSegment == 0);

// A maximum over several tasks. Their order does not matter.
class SharedMaximum {
 public:
  void add(Magnitude value) {
    Magnitude seen = largest_.load(std::memory_order_relaxed);
    while (seen < value && !largest_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  float value() const { return to_float(largest_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<Magnitude> largest_{0};
};

// A contiguous tensor as a single row. A per-tensor tile does not depend on the shape.
Tensor as_one_row(const Tensor& x) { return x.reshape({1, x.elements()}); }

// Calls body(row, begin, end) for ranges of at most kSegment columns of every row.
template <class Body>
void for_segments(const Tensor& x, Body body) {
  const std::int64_t cols = x.shape[1];
  const std::int64_t per_row = ceil_div(cols, kSegment);
  parallel_ranges(x.rows() * per_row, std::max<std::int64_t>(1, kTask / std::max<std::int64_t>(1, std::min(cols, kSegment))),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const std::int64_t begin = i % per_row * kSegment;
                      body(i / per_row, begin, std::min(cols, begin + kSegment));
                    }
                  });
}

void cast_segments(const Tensor& x, Fp8Format format, float scale, const Tensor& codes, SharedMaximum& largest) {
  const Source source(x);
  for_segments(x, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    Buffer16<size(kSegment)> buffer;
    const Source::Block block = source.block(row, begin, 1, end - begin, buffer.data());
    largest.add(cast(format, block.data, 0, 1, size(end - begin), scale, codes.as_bytes() + row * codes.row_stride + begin, 0));
  });
}

// Casts panel by panel and also writes the transposed codes. A task consists of several panels.
void cast_panels(const Tensor& x, const Quantized& out, float scale, SharedMaximum& largest) {
  constexpr std::int64_t kRun = 4 * kPanelCols;
  const Source source(x);
  const std::int64_t rows = x.rows(), cols = x.shape[1];
  const std::int64_t per_row = ceil_div(cols, kRun);
  parallel_for(ceil_div(rows, kPanelRows) * per_row, [&](std::int64_t task) {
    Buffer16<size(kPanelRows * kPanelCols)> buffer;
    Panel panel;
    const std::int64_t row = task / per_row * kPanelRows, height = std::min(kPanelRows, rows - row);
    const std::int64_t begin = task % per_row * kRun, end = std::min(cols, begin + kRun);
    Magnitude amax = 0;
    for (std::int64_t col = begin; col < end; col += kPanelCols) {
      const std::int64_t width = std::min(kPanelCols, end - col);
      const Source::Block block = source.block(row, col, height, width, buffer.data());
      amax = std::max(
          amax, cast(out.format, block.data, block.stride, size(height), size(width), scale, panel.codes(), Panel::kStride));
      panel.store(row, col, height, width, out.rowwise, out.columnwise);
    }
    largest.add(amax);
  });
}

}  // namespace

void amax(const Tensor& x, float* out) {
  const Source source(x);
  SharedMaximum largest;
  for_segments(x, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    Buffer16<size(kSegment)> buffer;
    largest.add(amax(source.block(row, begin, 1, end - begin, buffer.data()).data, size(end - begin)));
  });
  *out = largest.value();
}

void quantize_tensor(const Tensor& x, const Quantized& out, float scale, float* amax) {
  SharedMaximum largest;
  const bool one_row = x.elements() > 0 && x.contiguous() && out.rowwise.contiguous();
  if (out.columnwise) {
    cast_panels(x, out, scale, largest);
  } else if (one_row) {
    cast_segments(as_one_row(x), out.format, scale, as_one_row(out.rowwise), largest);
  } else {
    cast_segments(x, out.format, scale, out.rowwise, largest);
  }
  if (out.rowwise_scale_inv) *out.rowwise_scale_inv.as<float>() = 1.0f / scale;
  if (out.columnwise_scale_inv) *out.columnwise_scale_inv.as<float>() = 1.0f / scale;
  if (amax) *amax = max_magnitude(*amax, largest.value());
}

void quantize_along_rows(const Tensor& x, const QuantSpec& spec, const Quantized& out) {
  const Source source(x);
  const std::int64_t rows = x.rows(), cols = x.shape[1];
  const std::int64_t width = spec.tile == ScaleTile::row ? kSegment : tile_width(spec.tile);
  const std::int64_t tiles_per_segment = kSegment / width;
  parallel_ranges(rows, std::max<std::int64_t>(1, kTask / std::max<std::int64_t>(1, cols)),
                  [&](std::int64_t first, std::int64_t last) {
                    Buffer16<size(kSegment)> buffer;
                    std::array<float, kSegment / 32> amaxes, scales;
                    for (std::int64_t row = first; row < last; ++row) {
                      std::uint8_t* const codes = out.rowwise.as_bytes() + row * out.rowwise.row_stride;
                      const auto segment = [&](std::int64_t col) {
                        return source.block(row, col, 1, std::min(kSegment, cols - col), buffer.data()).data;
                      };
                      if (spec.tile == ScaleTile::row) {
                        Magnitude largest = 0;
                        for (std::int64_t col = 0; col < cols; col += kSegment) {
                          largest = std::max(largest, amax(segment(col), size(std::min(kSegment, cols - col))));
                        }
                        const float scale = make_scale(to_float(largest), spec, out.rowwise_scale_inv, row);
                        for (std::int64_t col = 0; col < cols; col += kSegment) {
                          cast_fitting(spec.format, segment(col), 0, 1, size(std::min(kSegment, cols - col)), to_float(largest),
                                       scale, codes + col, 0);
                        }
                        continue;
                      }
                      for (std::int64_t col = 0; col < cols; col += kSegment) {
                        const std::int64_t n = std::min(kSegment, cols - col);
                        const BFloat16* const data = segment(col);
                        amax_of_tiles(data, size(n), size(width), amaxes.data());
                        const std::int64_t tile = col / kSegment * tiles_per_segment;
                        for (std::int64_t t = 0; t < ceil_div(n, width); ++t) {
                          scales[size(t)] = make_scale(amaxes[size(t)], spec, out.rowwise_scale_inv,
                                                       scale_index(out.rowwise_scale_inv, spec.tile, row, tile + t));
                        }
                        cast_tiles(spec.format, data, size(n), size(width), amaxes.data(), scales.data(), codes + col);
                      }
                    }
                  });
}

void quantize_blocks(const Tensor& x, const QuantSpec& spec, const Quantized& out) {
  constexpr std::int64_t kBlock = 128;
  const Source source(x);
  const std::int64_t rows = x.rows(), cols = x.shape[1], across = ceil_div(cols, kBlock);
  parallel_ranges(ceil_div(rows, kBlock) * across, kTask / (kBlock * kBlock), [&](std::int64_t first, std::int64_t last) {
    Buffer16<size(kBlock * kBlock)> buffer;
    Panel panel;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = i / across * kBlock, height = std::min(kBlock, rows - row);
      const std::int64_t col = i % across * kBlock, width = std::min(kBlock, cols - col);
      const Source::Block block = source.block(row, col, height, width, buffer.data());
      Magnitude largest = 0;
      for (std::int64_t r = 0; r < height; ++r) largest = std::max(largest, amax(block.data + r * block.stride, size(width)));
      const float scale = scale_from_amax(to_float(largest), spec);
      if (out.rowwise)
        out.rowwise_scale_inv.as<float>()[i / across * out.rowwise_scale_inv.row_stride + i % across] = 1.0f / scale;
      if (out.columnwise)
        out.columnwise_scale_inv.as<float>()[i % across * out.columnwise_scale_inv.row_stride + i / across] = 1.0f / scale;
      for (std::int64_t r = 0; r < height; r += kPanelRows) {
        const std::int64_t h = std::min(kPanelRows, height - r);
        cast_fitting(spec.format, block.data + r * block.stride, block.stride, size(h), size(width), to_float(largest), scale,
                     panel.codes(), Panel::kStride);
        panel.store(row + r, col, h, width, out.rowwise, out.columnwise);
      }
    }
  });
}

}  // namespace octet::kernels::cpu
