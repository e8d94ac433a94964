#include <cstring>

#include "octet/kernels/quantize/cast_list_cuda.h"
#include "octet/kernels/quantize/items_cuda.cuh"
#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

struct F32Source : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 4, kAcross = 1;
  struct Column {};
  using Raw = Vector<float>;
  const float* x;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const { return load_vector(x + row * stride + col); }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const { made[0] = round_like_cpu(raw); }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const { made[0] = BFloat16(x[row * stride + col]); }
};

// Writes codes with one scale per 32 values of a row and, columnwise, per 32 values of a column.
struct MxEpilogue {
  static constexpr int kBlock = 32, kGroups = kTile / kBlock, kWarps = kTileThreads / 32 / kGroups;  // warps per group of rows
  struct Shared {
    TransposedTile transposed;
    ColumnMagnitudes magnitudes;
    alignas(16) float scales[kGroups][kTile];
  };
  struct State {};
  Codes codes;
  std::uint8_t* rowwise_scale_inv;
  std::int64_t rowwise_scale_stride;
  std::uint8_t* columnwise_scale_inv;
  std::int64_t columnwise_scale_stride;
  int columnwise_scales;  // scales of a column, including padding

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], const State&, Shared& shared) const {
    if (codes.rowwise) write_rowwise(tile, values);
    if (codes.columnwise) write_columnwise(tile, values, shared);
  }

 private:
  __device__ void write_rowwise(const Tile& tile, const Bf16Vector (&values)[kTileRows]) const {
    unsigned pairs[kTileRows / 2];
    row_magnitudes<kBlock / kVector>(values, pairs);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const std::uint8_t code = mx_scale_code(magnitude_value(row_of_pairs(pairs, i)));
      if (tile.col() % kBlock == 0 && tile.row(i) < tile.rows && tile.col() < tile.cols) {
        rowwise_scale_inv[tile.row(i) * rowwise_scale_stride + tile.col() / kBlock] = code;
      }
      codes.store_row(tile, i, encode<Fp8Format::e4m3>(values[i], e8m0_reciprocal(code)));
    }
  }
  __device__ void write_columnwise(const Tile& tile, const Bf16Vector (&values)[kTileRows], Shared& shared) const {
    constexpr std::uint8_t kOne = 127;
    shared.magnitudes.put(tile, values);
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x) % kTile, col = tile.col0 + column;
    for (int group = static_cast<int>(threadIdx.x) / kTile; group < kGroups; group += kTileThreads / kTile) {
      const std::uint8_t code = mx_scale_code(magnitude_value(shared.magnitudes.get<kWarps>(column, group * kWarps)));
      shared.scales[group][column] = e8m0_reciprocal(code);
      const int row = tile.row0 + group * kBlock, at = row / kBlock;
      if (col < tile.cols && at < columnwise_scales)
        columnwise_scale_inv[col * columnwise_scale_stride + at] = row < tile.rows ? code : kOne;
    }
    __syncthreads();
    write_columnwise_codes<Fp8Format::e4m3>(tile, values, shared.scales[tile.warp() / kWarps], codes, shared.transposed);
  }
};

template <class F>
void with_source(const Tensor& x, const RowGroups& groups, F f) {
  if (x.dtype == DType::bf16) return f(Bf16Source(x, groups));
  const Extent extent{.rows = static_cast<int>(x.rows()),
                      .cols = static_cast<int>(x.shape[1]),
                      .wide = rows_are_aligned(x) && x.shape[1] % kVector == 0,
                      .groups = groups_of(groups)};
  f(F32Source{extent, x.as<float>(), x.row_stride});
}

MxEpilogue mx_epilogue(const Quantized& out, int cols) {
  return {.codes = {out, cols},
          .rowwise_scale_inv = out.rowwise_scale_inv.as_bytes(),
          .rowwise_scale_stride = out.rowwise_scale_inv.row_stride,
          .columnwise_scale_inv = out.columnwise_scale_inv.as_bytes(),
          .columnwise_scale_stride = out.columnwise_scale_inv.row_stride,
          .columnwise_scales = out.columnwise ? static_cast<int>(out.columnwise_scale_inv.shape[1]) : 0};
}

template <class Source>
void write_mx_codes(Stream& stream, const Source& source, const Quantized& out) {
  if (source.rows == 0 || source.cols == 0) return;
  launch_tiles(stream, source, mx_epilogue(out, source.cols));
}

// What one op of a list reads and writes. The amaxes of a list lie in scratch memory, whose address differs from call to call, so
// an item knows only where its own begin in it.
template <class Source, class Epilogue>
struct QuantizeItem {
  Source source;
  Epilogue codes;
  std::int64_t first_amax;
};

// The pass that computes the amaxes of whole tensors, or of rows and columns.
struct AmaxPass {
  template <class Source, class Epilogue>
  static __device__ AmaxEpilogue epilogue(const QuantizeItem<Source, Epilogue>& item, float* amaxes) {
    float* const own = amaxes + item.first_amax;
    if constexpr (requires { item.codes.row_amax; }) {
      return {.rows = item.codes.codes.rowwise ? own : nullptr,
              .columns = item.codes.codes.columnwise ? own + item.source.rows : nullptr,
              .group_columns = item.source.cols};
    } else {
      return {.whole = own};
    }
  }
};
// The pass that writes the codes.
struct CodesPass {
  template <class Source, class Epilogue>
  static __device__ Epilogue epilogue(const QuantizeItem<Source, Epilogue>& item, float* amaxes) {
    Epilogue result = item.codes;
    if constexpr (requires { result.row_amax; }) {
      result.row_amax = amaxes + item.first_amax;
      result.column_amax = result.row_amax + item.source.rows;
    } else if constexpr (requires { result.current_amax; }) {
      result.current_amax = amaxes + item.first_amax;
    }
    return result;
  }
};

// Calls f(source, epilogue) with the types, and with the operands, of an op without groups.
template <class F>
void with_item(const Quantize& op, F f) {
  const QuantizeEpilogue to{.spec = op.spec, .out = op.out, .scale = op.scale, .amax = op.amax};
  with_source(op.x, {}, [&](const auto& source) {
    if (op.spec.tile == ScaleTile::mx_1x32) return f(source, mx_epilogue(op.out, source.cols));
    visit_format(op.spec.format, [&]<Fp8Format kFormat>() {
      if (op.spec.tile == ScaleTile::tensor) return f(source, tensor_epilogue<kFormat>(to, source.cols, nullptr));
      if (op.spec.tile == ScaleTile::block_128x128) return f(source, block_epilogue<kFormat>(to, source.cols));
      require(op.spec.tile == ScaleTile::row, "a list of weights has no 1x128 tiles");
      f(source, line_epilogue<kFormat>(to, source.cols, nullptr, nullptr));
    });
  });
}

}  // namespace

CastItem item_of(const Quantize& op, std::int64_t first_amax) {
  CastItem result;
  with_item(op, [&]<class Source, class Epilogue>(const Source& source, const Epilogue& epilogue) {
    result = as_item(QuantizeItem<Source, Epilogue>{source, epilogue, first_amax});
  });
  return result;
}

void quantize(Stream& stream, const CastList<Quantize>& list, float* amaxes) {
  if (list.table().chunks() == 0) return;
  const Quantize& first = list.ops().front();
  with_item(first, [&]<class Source, class Epilogue>(const Source&, const Epilogue&) {
    using Item = QuantizeItem<Source, Epilogue>;
    if (list.amaxes() > 0) {
      zero(stream, amaxes, list.amaxes());
      launch_items<Item, AmaxPass, AmaxEpilogue>(stream, list.table(), amaxes);
    }
    launch_items<Item, CodesPass, Epilogue>(stream, list.table(), amaxes);
  });
}

void amax(Stream& stream, const Amax& op) {
  zero(stream, op.amax, 1);
  with_source(op.x, {}, [&](const auto& source) { launch_tiles(stream, source, AmaxEpilogue{.whole = op.amax}); });
}

void quantize(Stream& stream, const Quantize& op, float* amaxes) {
  const QuantizeEpilogue to{.spec = op.spec,
                            .out = op.out,
                            .scale = op.scale,
                            .amax = op.amax,
                            .groups = op.groups,
                            .scale_stride = op.scale_stride,
                            .amax_stride = op.amax_stride};
  with_source(op.x, op.groups, [&](const auto& source) {
    if (op.spec.tile == ScaleTile::mx_1x32) {
      write_mx_codes(stream, source, op.out);
    } else {
      write_codes(stream, source, source, to, amaxes);
    }
  });
}

}  // namespace octet::kernels::cuda
