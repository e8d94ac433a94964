#include "octet/kernels/quantize/shard_cpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/blocks_cpu.h"

namespace octet::kernels::cpu {
namespace {

// W is processed in a fixed grid of panels. A tile never begins or ends inside a panel unless it is higher than the panel.
constexpr std::int64_t kRows = 32, kCols = 256, kBlock = 128, kMx = 32;
constexpr std::int64_t kTaskPanels = 8;
static_assert(kCols % kBlock == 0 && kCols == ColumnScales::kColumns && kBlock % kRows == 0 && kRows % kMx == 0);

// *to = max(*to, value), while other threads may do the same. The order does not affect a maximum.
void raise(float& to, float value) {
  const std::atomic_ref<float> target(to);
  float seen = target.load(std::memory_order_relaxed);
  while (std::bit_cast<std::uint32_t>(seen) < std::bit_cast<std::uint32_t>(value) &&
         !target.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// A panel of W that has the shard's elements, and zeros elsewhere.
class ShardPanel {
 public:
  ShardPanel(const Shard& shard) : shard_(shard), cols_(shard.whole[1]), end_(shard.first + shard.x.elements()) {}

  std::int64_t row = 0, col = 0, height = 0, width = 0;  // position and size of the panel in W

  // Loads the panel of W at (row, col).
  void load(std::int64_t at_row, std::int64_t at_col) {
    row = at_row, col = at_col;
    height = std::min(kRows, shard_.whole[0] - row), width = std::min(kCols, cols_ - col);
    for (std::int64_t r = 0; r < height; ++r) {
      BFloat16* const to = values_.data() + r * kCols;
      const Run run = run_of(r);
      if (run.begin > 0 || run.end < width) std::memset(static_cast<void*>(to), 0, size(width) * sizeof(BFloat16));
      if (run.begin >= run.end) continue;
      const std::int64_t n = run.end - run.begin;
      if (shard_.x.dtype == DType::bf16) {
        std::memcpy(to + run.begin, shard_.x.as<BFloat16>() + run.from, size(n) * sizeof(BFloat16));
      } else {
        round_to_bf16(shard_.x.as<float>() + run.from, size(n), to + run.begin);
      }
    }
  }
  const BFloat16* row_of(std::int64_t r) { return values_.data() + r * kCols; }

  // Writes those of `codes` that belong to the shard. Rows of `codes` are kCols apart.
  void store(const std::uint8_t* codes, const Tensor& to) const {
    for (std::int64_t r = 0; r < height; ++r) {
      const Run run = run_of(r);
      if (run.begin < run.end) std::memcpy(to.as_bytes() + run.from, codes + r * kCols + run.begin, size(run.end - run.begin));
    }
  }

 private:
  // Columns [begin, end) of the panel are the elements of the shard from `from` on.
  struct Run {
    std::int64_t begin, end, from;
  };
  Run run_of(std::int64_t r) const {
    const std::int64_t at = (row + r) * cols_ + col;
    const std::int64_t begin = std::max<std::int64_t>(0, shard_.first - at), end = std::min(width, end_ - at);
    return {begin, end, at + begin - shard_.first};
  }

  const Shard& shard_;
  std::int64_t cols_, end_;
  Buffer16<size(kRows* kCols)> values_;
};

// Calls body(panel) for all panels of W that hold elements of the shard. The shard must not be empty.
template <class Body>
void for_panels(const Shard& shard, Body body) {
  const std::int64_t cols = shard.whole[1], across = ceil_div(cols, kCols);
  const std::int64_t top = shard.first / cols / kRows, bottom = (shard.first + shard.x.elements() - 1) / cols / kRows + 1;
  parallel_ranges((bottom - top) * across, kTaskPanels, [&](std::int64_t first, std::int64_t last) {
    ShardPanel panel(shard);
    for (std::int64_t i = first; i < last; ++i) {
      panel.load((top + i / across) * kRows, i % across * kCols);
      body(panel);
    }
  });
}

Magnitude amax_of_block(ShardPanel& panel, std::int64_t begin, std::int64_t end) {
  Magnitude largest = 0;
  for (std::int64_t r = 0; r < panel.height; ++r) largest = std::max(largest, amax(panel.row_of(r) + begin, size(end - begin)));
  return largest;
}

void raise_rows(ShardPanel& panel, const ShardAmax& op) {
  float* const grid = op.rows.as<float>();
  const std::int64_t across = op.rows.cols();
  switch (op.tile) {
    case ScaleTile::tensor:
      return raise(*grid, to_float(amax_of_block(panel, 0, panel.width)));
    case ScaleTile::row:
      for (std::int64_t r = 0; r < panel.height; ++r) {
        raise(grid[panel.row + r], to_float(amax(panel.row_of(r), size(panel.width))));
      }
      return;
    case ScaleTile::block_128x128:
      for (std::int64_t c = 0; c < panel.width; c += kBlock) {
        raise(grid[panel.row / kBlock * across + (panel.col + c) / kBlock],
              to_float(amax_of_block(panel, c, std::min(panel.width, c + kBlock))));
      }
      return;
    default:  // MX
      for (std::int64_t r = 0; r < panel.height; ++r) {
        std::array<float, kCols / kMx> amaxes;
        amax_of_tiles(panel.row_of(r), size(panel.width), size(kMx), amaxes.data());
        for (std::int64_t t = 0; t < ceil_div(panel.width, kMx); ++t) {
          raise(grid[(panel.row + r) * across + panel.col / kMx + t], amaxes[size(t)]);
        }
      }
  }
}

// The index in the grid of multipliers or amaxes of the panel's first column.
std::int64_t column_index(const ShardPanel& panel, ScaleTile tile, const Shape& whole) {
  return (tile == ScaleTile::row ? 0 : panel.row / kMx * whole[1]) + panel.col;
}

void column_amaxes(ShardPanel& panel, std::array<Magnitude, kCols>& largest) {
  largest.fill(0);
  amax_of_columns(panel.row_of(0), kCols, size(panel.height), size(panel.width), largest.data());
}

void raise_columns(ShardPanel& panel, const ShardAmax& op) {
  std::array<Magnitude, kCols> largest;
  column_amaxes(panel, largest);
  float* const grid = op.columns.as<float>() + column_index(panel, op.tile, op.shard.whole);
  for (std::int64_t c = 0; c < panel.width; ++c) raise(grid[c], to_float(largest[size(c)]));
}

// The `amax` argument of cast_fitting and similar functions: the amax if its product fits
// the format, or infinity if the product saturates. The multiplier was computed from the
// amax of all shards, which may be infinite or NaN even if this shard's amax is finite.
float amax_if_fitting(Fp8Format format, float amax, float multiplier) {
  constexpr float kSlack = 1.0f + 0x1p-10f;  // larger than the multiplier's rounding error, smaller than half a unit of the codes
  return amax * multiplier <= fp8_max(format) * kSlack ? amax : std::numeric_limits<float>::infinity();
}

class PanelCaster {
 public:
  PanelCaster(const CastShard& op) : op_(op), format_(op.spec.format) {}

  // Returns the largest magnitude for a per-tensor tile.
  Magnitude by_rows(ShardPanel& panel) {
    const float* const grid = op_.scale ? op_.scale : op_.multipliers.as<float>();
    const std::int64_t across = op_.multipliers ? op_.multipliers.cols() : 1;
    Magnitude largest = 0;
    switch (op_.spec.tile) {
      case ScaleTile::tensor:
        largest = cast_block(panel, 0, panel.height, 0, panel.width, *grid);
        break;
      case ScaleTile::row:
        for (std::int64_t r = 0; r < panel.height; ++r) cast_block(panel, r, 1, 0, panel.width, grid[panel.row + r]);
        break;
      case ScaleTile::block_128x128:
        for (std::int64_t c = 0; c < panel.width; c += kBlock) {
          cast_block(panel, 0, panel.height, c, std::min(kBlock, panel.width - c),
                     grid[panel.row / kBlock * across + (panel.col + c) / kBlock]);
        }
        break;
      default:  // MX
        for (std::int64_t r = 0; r < panel.height; ++r) cast_mx(panel, r, grid + (panel.row + r) * across + panel.col / kMx);
    }
    panel.store(codes_.data(), op_.codes);
    return largest;
  }

  void by_columns(ShardPanel& panel) {
    const float* const grid = op_.column_multipliers.as<float>() + column_index(panel, op_.spec.tile, op_.shard.whole);
    std::array<Magnitude, kCols> largest;
    column_amaxes(panel, largest);
    ColumnScales scales;
    for (std::int64_t c = 0; c < panel.width; ++c) {
      scales.set(size(c), amax_if_fitting(format_, to_float(largest[size(c)]), grid[c]), grid[c]);
    }
    cast_columns(format_, panel.row_of(0), kCols, size(panel.height), size(panel.width), scales, codes_.data(), kCols);
    panel.store(codes_.data(), op_.column_codes);
  }

 private:
  Magnitude cast_block(ShardPanel& panel, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, float scale) {
    return cast(format_, panel.row_of(row) + col, kCols, size(rows), size(cols), scale, codes_.data() + row * kCols + col, kCols);
  }
  void cast_mx(ShardPanel& panel, std::int64_t r, const float* multipliers) {
    std::array<float, kCols / kMx> amaxes;
    amax_of_tiles(panel.row_of(r), size(panel.width), size(kMx), amaxes.data());
    for (std::int64_t t = 0; t < ceil_div(panel.width, kMx); ++t) {
      amaxes[size(t)] = amax_if_fitting(format_, amaxes[size(t)], multipliers[t]);
    }
    cast_tiles(format_, panel.row_of(r), size(panel.width), size(kMx), amaxes.data(), multipliers, codes_.data() + r * kCols);
  }

  const CastShard& op_;
  Fp8Format format_;
  alignas(64) std::array<std::uint8_t, size(kRows* kCols)> codes_;
};

}  // namespace

void shard_amax(const ShardAmax& op) {
  for_panels(op.shard, [&](ShardPanel& panel) {
    if (op.rows) raise_rows(panel, op);
    if (op.columns) raise_columns(panel, op);
  });
}

void scales_from_amax(const ScalesFromAmax& op) {
  // The grid as [down, across]. Along columns, MX scales are stored transposed.
  const bool one_dim = op.amax.shape.rank() == 1;
  const std::int64_t down = one_dim ? 1 : op.amax.rows(), across = one_dim ? op.amax.rows() : op.amax.shape[1];
  const std::int64_t stride = one_dim ? 0 : op.scale_inv.row_stride;
  const bool transposed = op.along == Along::columns && !one_dim;
  const float* const amax = op.amax.as<float>();
  float* const multipliers = op.multipliers.as<float>();
  constexpr std::int64_t kTask = 16 * 1024;
  parallel_ranges(down, std::max<std::int64_t>(1, kTask / std::max<std::int64_t>(1, across)),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      for (std::int64_t k = 0; k < across; ++k) {
                        multipliers[i * across + k] =
                            make_scale(amax[i * across + k], op.spec, op.scale_inv, transposed ? k * stride + i : i * stride + k);
                      }
                    }
                  });
  if (!transposed) return;
  constexpr std::uint8_t kOne = 127;
  for (std::int64_t c = 0; c < across; ++c) {
    std::fill(op.scale_inv.as_bytes() + c * stride + down, op.scale_inv.as_bytes() + c * stride + op.scale_inv.shape[1], kOne);
  }
}

void cast_shard(const CastShard& op) {
  if (op.scale) *op.scale_inv.as<float>() = 1.0f / *op.scale;
  if (op.shard.x.elements() == 0) return;
  float largest = 0.0f;
  for_panels(op.shard, [&](ShardPanel& panel) {
    PanelCaster caster(op);
    if (op.codes) raise(largest, to_float(caster.by_rows(panel)));
    if (op.column_codes) caster.by_columns(panel);
  });
  if (op.amax) *op.amax = max_magnitude(*op.amax, largest);
}

}  // namespace octet::kernels::cpu
