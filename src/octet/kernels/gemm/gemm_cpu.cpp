#include <algorithm>
#include <type_traits>
#include <vector>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/kernels/gemm/decode.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/gemm/gemm_tiles.h"
#include "octet/kernels/gemm/lanes.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

using Layout = GemmOperand::Layout;

// Decodes a part of an FP8 operand to FP32, [rows, length], or [length, rows] if K is first. For tensor and row tiles, scales are
// not applied.
template <Fp8Format kFormat>
void decode_fp8(const GemmOperand& x, const Part& part, float* out) {
  if (x.layout == Layout::k_first) {
    for (std::int64_t k = part.k; k < part.k + part.length; ++k, out += part.rows)
      decode_values<kFormat>(out, x.values.as_bytes() + k * x.values.row_stride + part.row, part.rows);
    return;
  }
  for (std::int64_t row = part.row; row < part.row + part.rows; ++row, out += part.length) {
    const std::uint8_t* codes = x.values.as_bytes() + row * x.values.row_stride + part.k;
    const std::int64_t width = tile_width(x.tile);
    if (width == 0) {
      decode_values<kFormat>(out, codes, part.length);
      continue;
    }
    for (std::int64_t i = 0; i < part.length; i += width) {
      decode_values<kFormat>(out + i, codes + i, std::min(width, part.length - i), scale_of(x, row, (part.k + i) / width));
    }
  }
}

// A part in the form that BLAS reads, with K along the columns (`wanted` is k_last) or along the rows.
template <class T>
BlasMatrix<T> matrix(const GemmOperand& x, const Part& part, Layout wanted, [[maybe_unused]] T* memory) {
  const Order order = x.layout == wanted ? Order::as_stored : Order::transposed;
  const bool k_last = x.layout == Layout::k_last;
  const std::int64_t first = k_last ? part.row : part.k, lines = k_last ? part.rows : part.length;
  const std::int64_t column = k_last ? part.k : part.row, length = k_last ? part.length : part.rows;
  if constexpr (std::is_same_v<T, float>) {
    switch (x.values.dtype) {
      case DType::f8_e4m3:
        decode_fp8<Fp8Format::e4m3>(x, part, memory);
        return {memory, length, order};
      case DType::f8_e5m2:
        decode_fp8<Fp8Format::e5m2>(x, part, memory);
        return {memory, length, order};
      case DType::bf16: {
        const BFloat16* from = x.values.as<BFloat16>() + first * x.values.row_stride + column;
        for (std::int64_t i = 0; i < lines; ++i) load_row(memory + i * length, from + i * x.values.row_stride, length);
        return {memory, length, order};
      }
      default:
        break;
    }
  }
  const std::int64_t stride = std::max(x.values.row_stride, x.values.shape[1]);
  return {x.values.as<T>() + first * stride + column, stride, order};
}

// row[j] = (row[j] * a's scale) * b's scale of column j.
void scale_row(float* row, std::int64_t n, float a, const float* b, std::int64_t b_step) {
  if (b_step == 0) {
    const float factor = *b;
    for (std::int64_t j = 0; j < n; ++j) row[j] = (row[j] * a) * factor;
  } else {
    for (std::int64_t j = 0; j < n; ++j) row[j] = (row[j] * a) * b[j];
  }
}

struct Tile {
  std::int64_t row, rows, column, columns;
};

// The sums of a tile [tile.rows, tile.columns], by BLAS.
template <class T>
void sum_with_blas(const Gemm& op, const GemmPlan& plan, const Tile& tile, T* sums, T* memory) {
  T* const a_memory = memory;
  T* const b_memory = a_memory + plan.chunk_k * plan.tile_m;
  const std::int64_t chunk = plan.chunk_k > 0 ? plan.chunk_k : plan.k;
  for (std::int64_t k = 0; k < plan.k; k += chunk) {
    const std::int64_t length = std::min(chunk, plan.k - k);
    multiply(Product<T>{.m = tile.rows,
                        .n = tile.columns,
                        .k = length,
                        .a = matrix(op.a, {tile.row, tile.rows, k, length}, Layout::k_last, a_memory),
                        .b = matrix(op.b, {tile.column, tile.columns, k, length}, Layout::k_first, b_memory),
                        .beta = k == 0 ? T(0) : T(1),
                        .d = sums,
                        .d_stride = tile.columns});
  }
}

// Writes rows [first, first + rows) of a tile of D from their sums, which it overwrites.
template <class T, class Out>
void write_rows(const Gemm& op, const Tile& tile, std::int64_t first, std::int64_t rows, T* sums, std::int64_t stride) {
  [[maybe_unused]] const auto step = [](const GemmOperand& x) { return x.tile == ScaleTile::row ? 1 : 0; };
  [[maybe_unused]] const bool scaled = size_of(op.a.values.dtype) == 1 && tile_width(op.a.tile) == 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    T* const row = sums + i * stride;
    const std::int64_t d_row = tile.row + first + i;
    if constexpr (std::is_same_v<T, float>) {
      if (scaled) {
        const float a_scale = op.a.scale_inv.as<float>()[d_row * step(op.a)];
        scale_row(row, tile.columns, a_scale, op.b.scale_inv.as<float>() + tile.column * step(op.b), step(op.b));
      }
    }
    if (op.factor != 1.0f) {
      for (std::int64_t j = 0; j < tile.columns; ++j) row[j] *= static_cast<T>(op.factor);
    }
    if (op.c) {
      const Out* c = op.c.as<Out>() + d_row * op.c.row_stride + tile.column;
      for (std::int64_t j = 0; j < tile.columns; ++j) row[j] += static_cast<T>(c[j]);
    }
    store_row(op.d.as<Out>() + d_row * op.d.row_stride + tile.column, row, tile.columns);
  }
}

// T is the type that is multiplied, Out the type of D. The sums are computed in separate memory, not in D. D's stride is often a
// power of 2, so that rows of D would evict each other from the caches; separate memory is about 10% faster (measured).
template <class T, class Out>
void multiply_tile(const Gemm& op, const GemmPlan& plan, const Tile& tile, T* memory) {
  T* const sums = memory;
  if (plan.k == 0) {
    std::fill_n(sums, tile.rows * tile.columns, T(0));
  } else {
    sum_with_blas(op, plan, tile, sums, memory + plan.sums_elements());
  }
  write_rows<T, Out>(op, tile, 0, tile.rows, sums, tile.columns);
}

// What a thread has packed last.
struct Packed {
  PackedPart a, b;
};

// The same by the processor's tiles. B is packed in parts that fit into the second-level cache with the sums, and a few rows of A
// just before they are multiplied. If K has one part, B stays packed for the tiles below this one.
template <class Out>
void multiply_packed_tile(const TileKernel& kernel, const Gemm& op, const TileCut& cut, const Tile& tile, Packed& packed,
                          float* sums) {
  const TileSession session(kernel);
  const std::int64_t depth = op.a.k(), stride = cut.sums_stride();
  const bool at_once = cut.packs_k_at_once(depth);
  float* const a_memory = sums + cut.sums_elements(depth);
  float* const b_memory = a_memory + cut.packed_elements_of(cut.a_rows, depth);
  for (std::int64_t k = 0; k < depth; k += cut.length) {
    const std::int64_t length = std::min(cut.length, depth - k);
    const TilePanel& b = packed.b.pack(kernel, TileSide::b, op.b, {tile.column, tile.columns, k, length}, b_memory);
    for (std::int64_t row = 0; row < tile.rows; row += cut.a_rows) {
      const std::int64_t rows = std::min(cut.a_rows, tile.rows - row);
      float* const row_sums = at_once ? sums : sums + row * stride;
      kernel.multiply({.m = rows,
                       .n = tile.columns,
                       .k = length,
                       .a = packed.a.pack(kernel, TileSide::a, op.a, {tile.row + row, rows, k, length}, a_memory),
                       .b = b,
                       .accumulate = k > 0,
                       .sums = row_sums,
                       .sums_stride = stride});
      if (k + length == depth) write_rows<float, Out>(op, tile, row, rows, row_sums, stride);
    }
  }
}

// How a product is computed: by the processor's tiles, or by BLAS.
struct Way {
  const TileKernel* kernel = nullptr;  // nullptr: BLAS
  TileCut cut = {};
  std::int64_t rows = 0, columns = 0;  // of a tile of D
};

Way way_of(const Gemm& op, const GemmPlan& plan, std::int64_t lanes) {
  const TileKernel* const kernel = tile_kernel();
  if (kernel == nullptr || plan.k == 0 || plan.tiles() == 0 || !exact_in_tiles(op))
    return {.rows = plan.tile_m, .columns = plan.tile_n};
  const TileCut cut = cut_for_tiles(op, plan, lanes);
  return {.kernel = kernel, .cut = cut, .rows = cut.rows, .columns = cut.columns};
}

template <class T, class Out>
void multiply_tiles(std::span<const Gemm> ops, std::span<const GemmPlan> plans, std::int64_t lanes, T* memory) {
  std::vector<std::int64_t> first = {0};  // of each product, among the tiles of all
  std::vector<Way> ways;
  std::int64_t lane_elements = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const GemmPlan& plan = plans[i];
    const Way& way = ways.emplace_back(way_of(ops[i], plan, ceil_div(lanes, static_cast<std::int64_t>(ops.size()))));
    first.push_back(first.back() + (plan.tiles() == 0 ? 0 : ceil_div(plan.m, way.rows) * ceil_div(plan.n, way.columns)));
    lane_elements = std::max(lane_elements, plan.lane_elements());
  }
  std::vector<Packed> packed(static_cast<std::size_t>(lanes));
  for_each_task(lanes, first.back(), [&](std::int64_t lane, std::int64_t task) {
    const auto which = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), task) - first.begin()) - 1;
    const GemmPlan& plan = plans[which];
    const Way& way = ways[which];
    const std::int64_t i = task - first[which], down = ceil_div(plan.m, way.rows);
    const std::int64_t row = i % down * way.rows, column = i / down * way.columns;
    const Tile tile{row, std::min(way.rows, plan.m - row), column, std::min(way.columns, plan.n - column)};
    T* const lane_memory = memory + lane * lane_elements;
    if constexpr (std::is_same_v<T, float>) {
      if (way.kernel)
        return multiply_packed_tile<Out>(*way.kernel, ops[which], way.cut, tile, packed[static_cast<std::size_t>(lane)],
                                         lane_memory);
    }
    packed[static_cast<std::size_t>(lane)] = {};  // BLAS overwrites it
    multiply_tile<T, Out>(ops[which], plan, tile, lane_memory);
  });
}

}  // namespace

void gemms(std::span<const Gemm> ops, std::span<const GemmPlan> plans, std::int64_t lanes, void* memory) {
  if (ops.empty()) return;
  constexpr double kWorthThreads = 5e5;  // multiply-adds; less work is finished before another thread has woken up
  double macs = 0;
  for (const GemmPlan& plan : plans)
    macs += static_cast<double>(plan.m) * static_cast<double>(plan.n) * static_cast<double>(plan.k);
  if (macs < kWorthThreads) lanes = 1;
  switch (ops.front().d.dtype) {
    case DType::f64:
      multiply_tiles<double, double>(ops, plans, lanes, static_cast<double*>(memory));
      break;
    case DType::f32:
      multiply_tiles<float, float>(ops, plans, lanes, static_cast<float*>(memory));
      break;
    default:
      multiply_tiles<float, BFloat16>(ops, plans, lanes, static_cast<float*>(memory));
      break;
  }
}

}  // namespace octet::kernels::cpu

namespace octet::kernels {
const char* gemm_core_name() { return cpu::blas_core_name(); }
const char* gemm_tiles_name() {
  const cpu::TileKernel* const kernel = cpu::tile_kernel();
  return kernel ? kernel->name : "";
}
}  // namespace octet::kernels
