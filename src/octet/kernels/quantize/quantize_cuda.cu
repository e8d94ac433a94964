#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/kernels/quantize/tails_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

struct F32Source : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 4, kAcross = 1;
  struct Column {};
  struct Raw {
    float4 low, high;
  };
  const float* x;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const auto* const at = reinterpret_cast<const float4*>(x + row * stride + col);
    return {at[0], at[1]};
  }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[1]) const { made[0] = round_like_cpu(raw.low, raw.high); }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const { made[0] = BFloat16(x[row * stride + col]).bits; }
};

struct MxTail {
  static constexpr int kWidth = 32, kGroups = kTile / kWidth, kWarps = kTileThreads / 32 / kGroups;  // warps per group of rows
  struct Shared {
    TransposedTile transposed;
    ColumnMagnitudes magnitudes;
    alignas(16) float scales[kGroups][kTile];
  };
  struct State {};
  Codes codes;
  std::uint8_t* scale_inv;
  std::int64_t stride;
  std::uint8_t* columnwise_scale_inv;
  std::int64_t stride_t;
  int scales_t;  // scales per column, including padding

  __device__ State begin() const { return {}; }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], const State&, Shared& shared) const {
    if (codes.rows) rows(tile, values);
    if (codes.columns) columns(tile, values, shared);
  }

 private:
  __device__ void rows(const Tile& tile, const Chunk (&values)[kTileRows]) const {
    unsigned pairs[kTileRows / 2];
    row_magnitudes<kWidth / kChunk>(values, pairs);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const std::uint8_t code = mx_scale_code(magnitude_value(row_of_pairs(pairs, i)));
      if (tile.col() % kWidth == 0 && tile.row(i) < tile.rows && tile.col() < tile.cols) {
        scale_inv[tile.row(i) * stride + tile.col() / kWidth] = code;
      }
      codes.store_row(tile, i, encode<Fp8Format::e4m3>(values[i], e8m0_reciprocal(code)));
    }
  }
  __device__ void columns(const Tile& tile, const Chunk (&values)[kTileRows], Shared& shared) const {
    constexpr std::uint8_t kOne = 127;
    shared.magnitudes.put(tile, values);
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x) % kTile, col = tile.col0 + column;
    for (int group = static_cast<int>(threadIdx.x) / kTile; group < kGroups; group += kTileThreads / kTile) {
      const std::uint8_t code = mx_scale_code(magnitude_value(shared.magnitudes.get<kWarps>(column, group * kWarps)));
      shared.scales[group][column] = e8m0_reciprocal(code);
      const int row = tile.row0 + group * kWidth, at = row / kWidth;
      if (col < tile.cols && at < scales_t) columnwise_scale_inv[col * stride_t + at] = row < tile.rows ? code : kOne;
    }
    __syncthreads();
    write_columns<Fp8Format::e4m3>(tile, values, shared.scales[tile.warp() / kWarps], codes, shared.transposed);
  }
};

template <class F>
void with_source(const Tensor& x, F f) {
  if (x.dtype == DType::bf16) return f(Bf16Source(x));
  const Extent extent{
      .rows = static_cast<int>(x.rows()), .cols = static_cast<int>(x.shape[1]), .wide = is_wide(x) && x.shape[1] % kChunk == 0};
  f(F32Source{extent, x.as<float>(), x.row_stride});
}

template <class Source>
void write_mx_codes(Stream& stream, const Source& source, const Quantized& out) {
  if (source.rows == 0 || source.cols == 0) return;
  launch_tiles(stream, source,
               MxTail{.codes = {out, source.cols},
                      .scale_inv = out.rowwise_scale_inv.as_bytes(),
                      .stride = out.rowwise_scale_inv.row_stride,
                      .columnwise_scale_inv = out.columnwise_scale_inv.as_bytes(),
                      .stride_t = out.columnwise_scale_inv.row_stride,
                      .scales_t = out.columnwise ? static_cast<int>(out.columnwise_scale_inv.shape[1]) : 0});
}

}  // namespace

void amax(Stream& stream, const Amax& op) {
  zero(stream, op.amax, 1);
  with_source(op.x, [&](const auto& source) { launch_tiles(stream, source, AmaxTail{.whole = op.amax}); });
}

void quantize(Stream& stream, const Quantize& op, float* amaxes) {
  const QuantizeEpilogue to{.spec = op.spec, .out = op.out, .scale = op.scale, .amax = op.amax};
  with_source(op.x, [&](const auto& source) {
    if (op.spec.tile == ScaleTile::mx_1x32) {
      write_mx_codes(stream, source, op.out);
    } else {
      write_codes(stream, source, source, to, amaxes);
    }
  });
}

}  // namespace octet::kernels::cuda
