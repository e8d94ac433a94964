// Epilogues for a tile of BF16 values in registers (tiles_cuda.cuh). They write the codes
// and scales of a recipe, the largest magnitudes, or the values. Magnitudes of BF16 are
// compared as integers of 15 bits, with NaN above infinity. Two of them share a register.
#pragma once

#include <cuda_fp8.h>

#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/tiles_cuda.cuh"
#include "octet/numerics/scale.h"

namespace octet::kernels::cuda {

__device__ inline unsigned max_pair(unsigned a, unsigned b) { return __vmaxu2(a, b); }
__device__ inline unsigned magnitudes(const Chunk& chunk) {
  constexpr unsigned kMask = 0x7FFF7FFFu;
  return max_pair(max_pair(chunk.x & kMask, chunk.y & kMask), max_pair(chunk.z & kMask, chunk.w & kMask));
}
__device__ inline float magnitude_value(unsigned bits) { return __uint_as_float(bits << 16); }

// The same as scale_from_amax, but without its division in F64, which only constant evaluation needs.
__device__ inline float device_scale(float amax, const QuantSpec& spec) {
  if (amax < spec.epsilon) amax = spec.epsilon;
  if (amax == 0.0f || !is_finite(amax)) return 1.0f;
  const float quotient = fp8_max(spec.format) / amax;
  const float scale = is_finite(quotient) ? quotient : is_block(spec.tile) ? kBf16Max : std::numeric_limits<float>::max();
  return spec.power_of_2 ? __uint_as_float(__float_as_uint(scale) & 0xFF800000u) : scale;
}

__device__ inline void raise(float* amax, float value) { atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(value)); }

// The bits of the largest magnitude of the warp's chunks.
__device__ inline unsigned warp_magnitude(const Chunk (&values)[kTileRows]) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) largest = max_pair(largest, magnitudes(values[i]));
  return __reduce_max_sync(kAllLanes, max(largest & 0xFFFFu, largest >> 16));
}

// The largest magnitudes of the thread's rows over the 8 kSpan columns
// of kSpan neighbouring lanes. Each word has two: row 2 i is low.
template <int kSpan>
__device__ void row_magnitudes(const Chunk (&values)[kTileRows], unsigned (&pairs)[kTileRows / 2]) {
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    const unsigned even = magnitudes(values[2 * i]), odd = magnitudes(values[2 * i + 1]);
    pairs[i] = max_pair(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
#pragma unroll
    for (int lane = kSpan / 2; lane > 0; lane /= 2) pairs[i] = max_pair(pairs[i], __shfl_xor_sync(kAllLanes, pairs[i], lane));
  }
}
__device__ inline unsigned row_of_pairs(const unsigned (&pairs)[kTileRows / 2], int i) {
  const unsigned pair = i & 4 ? (i & 2 ? pairs[3] : pairs[2]) : (i & 2 ? pairs[1] : pairs[0]);
  return i & 1 ? pair >> 16 : pair & 0xFFFFu;
}

// The largest magnitudes of the columns of each warp's 16 rows.
struct ColumnMagnitudes {
  Chunk warps[kTileThreads / 32][kTile / kChunk];

  // A barrier is needed between put() and get().
  __device__ void put(const Tile& tile, const Chunk (&values)[kTileRows]) {
    constexpr unsigned kMask = 0x7FFF7FFFu;
    Chunk largest{};
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      largest.x = max_pair(largest.x, values[i].x & kMask);
      largest.y = max_pair(largest.y, values[i].y & kMask);
      largest.z = max_pair(largest.z, values[i].z & kMask);
      largest.w = max_pair(largest.w, values[i].w & kMask);
    }
    largest.x = max_pair(largest.x, __shfl_xor_sync(kAllLanes, largest.x, 16));
    largest.y = max_pair(largest.y, __shfl_xor_sync(kAllLanes, largest.y, 16));
    largest.z = max_pair(largest.z, __shfl_xor_sync(kAllLanes, largest.z, 16));
    largest.w = max_pair(largest.w, __shfl_xor_sync(kAllLanes, largest.w, 16));
    if (tile.lane() < 16) warps[tile.warp()][tile.chunk()] = largest;
  }
  // The largest magnitude of a column over warps [first, first + count).
  template <int kCount>
  __device__ unsigned get(int column, int first = 0) const {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      largest = max(largest, unsigned{reinterpret_cast<const std::uint16_t*>(warps[first + i])[column]});
    }
    return largest;
  }
};

template <Fp8Format kFormat>
__device__ unsigned encode_pair(unsigned pair, float low_scale, float high_scale) {
  constexpr __nv_fp8_interpretation_t kKind = kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2({low_of(pair) * low_scale, high_of(pair) * high_scale}, __NV_SATFINITE, kKind);
}
template <Fp8Format kFormat>
__device__ uint2 encode(const Chunk& v, float scale) {
  return {encode_pair<kFormat>(v.x, scale, scale) | encode_pair<kFormat>(v.y, scale, scale) << 16,
          encode_pair<kFormat>(v.z, scale, scale) | encode_pair<kFormat>(v.w, scale, scale) << 16};
}
template <Fp8Format kFormat>
__device__ uint2 encode(const Chunk& v, const float4 (&scales)[2]) {
  const float4 a = scales[0], b = scales[1];
  return {encode_pair<kFormat>(v.x, a.x, a.y) | encode_pair<kFormat>(v.y, a.z, a.w) << 16,
          encode_pair<kFormat>(v.z, b.x, b.y) | encode_pair<kFormat>(v.w, b.z, b.w) << 16};
}

// Where codes are written. Null parts are absent.
struct Codes {
  std::uint8_t* rows = nullptr;
  std::int64_t rows_stride = 0;
  std::uint8_t* columns = nullptr;  // transposed codes
  std::int64_t columns_stride = 0;
  int columns_width = 0;  // includes padding
  bool wide_rows = false, wide_columns = false;

  // `part_cols` is the column at which the second part of the source's result begins.
  Codes(const Quantized& out, std::int64_t part_cols)
      : rows(out.rowwise.as_bytes()),
        rows_stride(out.rowwise.row_stride),
        columns(out.columnwise.as_bytes()),
        columns_stride(out.columnwise.row_stride),
        columns_width(out.columnwise ? static_cast<int>(out.columnwise.shape[1]) : 0),
        wide_rows(on_multiple(rows, kChunk) && rows_stride % kChunk == 0 && part_cols % kChunk == 0),
        wide_columns(on_multiple(columns, 16) && columns_stride % 16 == 0) {}

  // Stores the codes of the thread's rows 4 step to 4 step + 3.
  __device__ void store_rows(const Tile& tile, int step, const uint2 (&codes)[4]) const {
    if (wide_rows && tile.is_full()) {
      std::uint8_t* const at = rows + tile.row(4 * step) * rows_stride + tile.col();
#pragma unroll
      for (int i = 0; i < 4; ++i) *reinterpret_cast<uint2*>(at + i * rows_stride) = codes[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) store_row(tile, 4 * step + i, codes[i]);
  }
  __device__ void store_row(const Tile& tile, int i, uint2 codes) const {
    const int row = tile.row(i), col = tile.col();
    if (row >= tile.rows || col >= tile.cols) return;
    std::uint8_t* const at = rows + row * rows_stride + col;
    if (wide_rows && col + kChunk <= tile.cols) {
      *reinterpret_cast<uint2*>(at) = codes;
      return;
    }
#pragma unroll 1
    for (int k = 0; k < min(kChunk, tile.cols - col); ++k) {
      at[k] = static_cast<std::uint8_t>(codes.x);
      codes = {__funnelshift_r(codes.x, codes.y, 8), codes.y >> 8};
    }
  }
};

// A tile of codes that is transposed in shared memory. Column c has 32 words of four rows each. Word w is stored at w ^ 2 (c / 8
// % 16), so that lanes with different chunks and both halves of a warp use all banks, and pairs of words stay adjacent.
struct TransposedTile {
  unsigned words[kTile * kTile / 4];

  // Stores the codes of the thread's rows 4 step to 4 step + 3.
  __device__ void put(const Tile& tile, int step, const uint2 (&codes)[4]) {
    put_half(tile, step, 0, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    put_half(tile, step, 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
  }
  // Call it after a barrier. Writes 16 rows of a column at a time; codes after the last row are 0.
  __device__ void store(const Tile& tile, const Codes& out) const {
    constexpr int kPieces = kTile * kTile / 16 / kTileThreads;
    if (out.wide_columns && tile.is_full()) {
      const int column = static_cast<int>(threadIdx.x) / 8, part = static_cast<int>(threadIdx.x) % 8;
      std::uint8_t* const at = out.columns + (tile.col0 + column) * out.columns_stride + tile.row0 + part * 16;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        constexpr int kColumns = kTileThreads / 8;
        *reinterpret_cast<uint4*>(at + k * kColumns * out.columns_stride) = piece_of(k * kColumns + column, part);
      }
      return;
    }
#pragma unroll 1
    for (int k = 0; k < kPieces; ++k) {
      const int piece = k * kTileThreads + static_cast<int>(threadIdx.x);
      const int column = piece / 8, part = piece % 8;
      uint4 codes = piece_of(column, part);
      const int row = tile.row0 + part * 16, col = tile.col0 + column;
      if (col >= tile.cols || row >= out.columns_width) continue;
      if (row + 16 > tile.rows) {
        codes = {first_bytes(codes.x, tile.rows - row), first_bytes(codes.y, tile.rows - row - 4),
                 first_bytes(codes.z, tile.rows - row - 8), first_bytes(codes.w, tile.rows - row - 12)};
      }
      std::uint8_t* const at = out.columns + col * out.columns_stride + row;
      if (out.wide_columns && row + 16 <= out.columns_width) {
        *reinterpret_cast<uint4*>(at) = codes;
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < min(16, out.columns_width - row); ++i) {
        at[i] = static_cast<std::uint8_t>(codes.x);
        codes = {__funnelshift_r(codes.x, codes.y, 8), __funnelshift_r(codes.y, codes.z, 8), __funnelshift_r(codes.z, codes.w, 8),
                 codes.w >> 8};
      }
    }
  }

 private:
  __device__ uint4 piece_of(int column, int part) const {
    const int chunk = column / kChunk;
    const uint4 codes = *reinterpret_cast<const uint4*>(&words[column * 32 + 4 * (part ^ (chunk / 2))]);
    return chunk % 2 ? uint4{codes.z, codes.w, codes.x, codes.y} : codes;
  }
  // a, b, c and d are four columns of one row each.
  __device__ void put_half(const Tile& tile, int step, int first, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const unsigned ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
    const int word = (tile.warp() * 4 + step * 2 + tile.lane() / 16) ^ (2 * tile.chunk());
    unsigned* const at = &words[(tile.chunk() * kChunk + first) * 32 + word];
    at[0] = __byte_perm(ab, cd, 0x5410);
    at[32] = __byte_perm(ab, cd, 0x7632);
    at[64] = __byte_perm(ab_high, cd_high, 0x5410);
    at[96] = __byte_perm(ab_high, cd_high, 0x7632);
  }
  static __device__ unsigned first_bytes(unsigned word, int count) {
    return count <= 0 ? 0u : count >= 4 ? word : word & ((1u << (8 * count)) - 1u);
  }
};

// Writes codes with one scale, rowwise and transposed.
template <Fp8Format kFormat>
__device__ void write_codes(const Tile& tile, const Chunk (&values)[kTileRows], float scale, const Codes& out,
                            TransposedTile& transposed) {
#pragma unroll
  for (int step = 0; step < kTileRows / 4; ++step) {
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = encode<kFormat>(values[4 * step + i], scale);
    }
    if (out.rows) out.store_rows(tile, step, codes);
    if (out.columns) transposed.put(tile, step, codes);
  }
  if (!out.columns) return;
  __syncthreads();
  transposed.store(tile, out);
}

// Writes transposed codes with one scale per column.
template <Fp8Format kFormat>
__device__ void write_columns(const Tile& tile, const Chunk (&values)[kTileRows], const float* column_scales, const Codes& out,
                              TransposedTile& transposed) {
  const float4* const at = reinterpret_cast<const float4*>(column_scales + tile.chunk() * kChunk);
  const float4 scales[] = {at[0], at[1]};
#pragma unroll
  for (int step = 0; step < kTileRows / 4; ++step) {
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = encode<kFormat>(values[4 * step + i], scales);
    transposed.put(tile, step, codes);
  }
  __syncthreads();
  transposed.store(tile, out);
}

// Writes the values. Part p of the source goes to columns [p cols, (p + 1) cols).
struct ValuesTail {
  struct Shared {};
  struct State {};
  std::uint16_t* out;
  std::int64_t stride;
  bool wide;

  ValuesTail(const Tensor& to, int part_cols)
      : out(reinterpret_cast<std::uint16_t*>(to.as<BFloat16>())),
        stride(to.row_stride),
        wide(is_wide(to) && part_cols % kChunk == 0) {}

  __device__ State begin() const { return {}; }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], State, Shared&) const { store(tile, values); }
  __device__ void store(const Tile& tile, const Chunk (&values)[kTileRows]) const {
    const int col = tile.col();
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      if (tile.row(i) >= tile.rows || col >= tile.cols) continue;
      std::uint16_t* const at = out + tile.row(i) * stride + col;
      if (wide) {
        *reinterpret_cast<Chunk*>(at) = values[i];
        continue;
      }
      Chunk left = values[i];
#pragma unroll 1
      for (int k = 0; k < min(kChunk, tile.cols - col); ++k) {
        at[k] = static_cast<std::uint16_t>(left.x);
        left = pop_front(left);
      }
    }
  }
};

// Computes the largest magnitudes of the tensor, its rows and its columns. Each may be absent. The caller zeroes them first.
struct AmaxTail {
  using Shared = ColumnMagnitudes;
  using State = unsigned;  // the tensor's amax so far; avoids atomic operations by warps that cannot raise it
  float* whole = nullptr;
  float* rows = nullptr;
  float* columns = nullptr;

  __device__ State begin() const { return whole ? __float_as_uint(*whole) : 0u; }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], State so_far, Shared& shared) const {
    if (whole) {
      const unsigned largest = warp_magnitude(values) << 16;
      if (tile.lane() == 0 && largest > so_far) raise(whole, __uint_as_float(largest));
    }
    if (rows) {
      unsigned pairs[kTileRows / 2];
      row_magnitudes<16>(values, pairs);
      const int mine = tile.lane() % kTileRows, row = tile.row(mine);
      if (tile.chunk() == mine && row < tile.rows) raise(rows + row, magnitude_value(row_of_pairs(pairs, mine)));
    }
    if (columns) {
      shared.put(tile, values);
      __syncthreads();
      const int column = static_cast<int>(threadIdx.x), col = tile.col0 + column;
      if (column < kTile && col < tile.cols) raise(columns + col, magnitude_value(shared.get<kTileThreads / 32>(column)));
    }
  }
};

// Writes codes with one scale for the whole tensor: `scale`, or the scale of `current_amax`.
template <Fp8Format kFormat>
struct TensorTail {
  using Shared = TransposedTile;
  struct State {
    float scale_or_amax;
    unsigned amax;  // the recorded amax so far; avoids atomic operations by warps that cannot raise it
  };
  Codes codes;
  QuantSpec spec;
  const float* scale;
  const float* current_amax;
  float* amax;
  float* scale_inv;
  float* columnwise_scale_inv;

  __device__ State begin() const {
    return {.scale_or_amax = scale ? *scale : *current_amax, .amax = amax ? __float_as_uint(*amax) : 0u};
  }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], const State& state, Shared& shared) const {
    const float factor = scale ? state.scale_or_amax : device_scale(state.scale_or_amax, spec);
    if (tile.row0 == 0 && tile.col0 == 0 && threadIdx.x == 0) {
      if (scale_inv) *scale_inv = 1.0f / factor;
      if (columnwise_scale_inv) *columnwise_scale_inv = 1.0f / factor;
    }
    if (amax) {
      const unsigned largest = warp_magnitude(values) << 16;
      if (tile.lane() == 0 && largest > state.amax) raise(amax, __uint_as_float(largest));
    }
    write_codes<kFormat>(tile, values, factor, codes, shared);
  }
};

// Writes codes with one scale per 128 x 128 tile.
template <Fp8Format kFormat>
struct BlockTail {
  struct Shared {
    TransposedTile transposed;
    unsigned warps[kTileThreads / 32];
  };
  struct State {};
  Codes codes;
  QuantSpec spec;
  float* scale_inv;
  std::int64_t stride;
  float* columnwise_scale_inv;
  std::int64_t stride_t;

  __device__ State begin() const { return {}; }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], const State&, Shared& shared) const {
    const unsigned of_warp = warp_magnitude(values);
    if (tile.lane() == 0) shared.warps[tile.warp()] = of_warp;
    __syncthreads();
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kTileThreads / 32; ++i) largest = max(largest, shared.warps[i]);
    const float scale = device_scale(magnitude_value(largest), spec);
    if (threadIdx.x == 0) {
      const int down = tile.row0 / kTile, across = tile.col0 / kTile;
      if (codes.rows) scale_inv[down * stride + across] = 1.0f / scale;
      if (codes.columns) columnwise_scale_inv[across * stride_t + down] = 1.0f / scale;
    }
    write_codes<kFormat>(tile, values, scale, codes, shared.transposed);
  }
};

// Writes codes with one scale per row of the tile, and transposed codes with one scale per column of the tile. The scales are
// those of 1x128 blocks or, if the amaxes of whole rows and columns are given, those of rows and columns.
template <Fp8Format kFormat>
struct LineTail {
  struct Shared {
    TransposedTile transposed;
    ColumnMagnitudes magnitudes;
    alignas(16) float scales[kTile];
  };
  struct State {};
  Codes codes;
  QuantSpec spec;
  const float* row_amax;
  const float* column_amax;
  float* scale_inv;
  std::int64_t stride;  // between columns of tiles; 0 if a row has one scale
  float* columnwise_scale_inv;
  std::int64_t stride_t;

  __device__ State begin() const { return {}; }
  __device__ void finish(const Tile& tile, const Chunk (&values)[kTileRows], const State&, Shared& shared) const {
    if (codes.columns) column_scales(tile, values, shared);
    if (codes.rows) rows(tile, values);  // meanwhile, half of the warps compute the columns' scales
    if (!codes.columns) return;
    __syncthreads();
    write_columns<kFormat>(tile, values, shared.scales, codes, shared.transposed);
  }

 private:
  // Each lane computes the scale of one row and gets the other scales by shuffles.
  __device__ void rows(const Tile& tile, const Chunk (&values)[kTileRows]) const {
    const int mine = tile.lane() % kTileRows, row = tile.row(mine);
    float amax = 0.0f;
    if (row_amax) {
      if (row < tile.rows) amax = row_amax[row];
    } else {
      unsigned pairs[kTileRows / 2];
      row_magnitudes<16>(values, pairs);
      amax = magnitude_value(row_of_pairs(pairs, mine));
    }
    const float scale = device_scale(amax, spec);
    if (tile.chunk() == mine && row < tile.rows) scale_inv[tile.col0 / kTile * stride + row] = 1.0f / scale;
#pragma unroll
    for (int step = 0; step < kTileRows / 4; ++step) {
      uint2 of_rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float of_row = __shfl_sync(kAllLanes, scale, (tile.lane() & 16) | (4 * step + i));
        of_rows[i] = encode<kFormat>(values[4 * step + i], of_row);
      }
      codes.store_rows(tile, step, of_rows);
    }
  }
  // A barrier is needed before the scales are read.
  __device__ void column_scales(const Tile& tile, const Chunk (&values)[kTileRows], Shared& shared) const {
    if (!column_amax) {
      shared.magnitudes.put(tile, values);
      __syncthreads();
    }
    const int column = static_cast<int>(threadIdx.x), col = tile.col0 + column;
    if (column < kTile) {
      float amax = 0.0f;
      if (!column_amax) {
        amax = magnitude_value(shared.magnitudes.template get<kTileThreads / 32>(column));
      } else if (col < tile.cols) {
        amax = column_amax[col];
      }
      const float scale = device_scale(amax, spec);
      shared.scales[column] = scale;
      if (col < tile.cols) columnwise_scale_inv[tile.row0 / kTile * stride_t + col] = 1.0f / scale;
    }
  }
};

template <class F>
void visit_format(Fp8Format format, F f) {
  if (format == Fp8Format::e4m3) {
    f.template operator()<Fp8Format::e4m3>();
  } else {
    f.template operator()<Fp8Format::e5m2>();
  }
}

inline float* scales_of(const Tensor& scales) { return scales ? scales.as<float>() : nullptr; }

// Uses to.scale, or the scale of `current_amax` if to.scale is null.
template <class Source>
void write_tensor_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to, const float* current_amax) {
  visit_format(to.spec.format, [&]<Fp8Format kFormat>() {
    launch_tiles(stream, source,
                 TensorTail<kFormat>{.codes = {to.out, source.cols},
                                     .spec = to.spec,
                                     .scale = to.scale,
                                     .current_amax = current_amax,
                                     .amax = to.amax,
                                     .scale_inv = scales_of(to.out.rowwise_scale_inv),
                                     .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv)});
  });
}

// Uses scales of 1x128 blocks, or scales of rows and columns if their amaxes are given.
template <class Source>
void write_line_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to, const float* row_amax,
                      const float* column_amax) {
  const bool blocks = to.spec.tile == ScaleTile::block_1x128;
  if (blocks && (source.rows == 0 || source.cols == 0)) return;
  visit_format(to.spec.format, [&]<Fp8Format kFormat>() {
    launch_tiles(stream, source,
                 LineTail<kFormat>{.codes = {to.out, source.cols},
                                   .spec = to.spec,
                                   .row_amax = row_amax,
                                   .column_amax = column_amax,
                                   .scale_inv = scales_of(to.out.rowwise_scale_inv),
                                   .stride = blocks ? to.out.rowwise_scale_inv.row_stride : 0,
                                   .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv),
                                   .stride_t = blocks ? to.out.columnwise_scale_inv.row_stride : 0});
  });
}

template <class Source>
void write_block_codes(Stream& stream, const Source& source, const QuantizeEpilogue& to) {
  if (source.rows == 0 || source.cols == 0) return;
  visit_format(to.spec.format, [&]<Fp8Format kFormat>() {
    launch_tiles(stream, source,
                 BlockTail<kFormat>{.codes = {to.out, source.cols},
                                    .spec = to.spec,
                                    .scale_inv = scales_of(to.out.rowwise_scale_inv),
                                    .stride = to.out.rowwise_scale_inv.row_stride,
                                    .columnwise_scale_inv = scales_of(to.out.columnwise_scale_inv),
                                    .stride_t = to.out.columnwise_scale_inv.row_stride});
  });
}

inline void zero(Stream& stream, float* at, std::int64_t count) {
  octet::cuda::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(count) * sizeof(float), octet::cuda::native_stream(stream)),
                     "cudaMemsetAsync");
}

// Writes the codes of a source. If amaxes are needed first, `first` computes them and `second`, which gives the same values, the
// codes. Computing the values twice moves no more bytes than storing and loading them.
template <class First, class Second>
void write_codes(Stream& stream, const First& first, const Second& second, const QuantizeEpilogue& to, float* amaxes) {
  switch (to.spec.tile) {
    case ScaleTile::tensor:
      if (to.scale) return write_tensor_codes(stream, first, to, nullptr);
      zero(stream, amaxes, 1);
      launch_tiles(stream, first, AmaxTail{.whole = amaxes});
      return write_tensor_codes(stream, second, to, amaxes);
    case ScaleTile::row: {
      float* const columns = amaxes + first.rows;
      zero(stream, amaxes, first.rows + first.cols * First::kParts);
      launch_tiles(stream, first,
                   AmaxTail{.rows = to.out.rowwise ? amaxes : nullptr, .columns = to.out.columnwise ? columns : nullptr});
      return write_line_codes(stream, second, to, amaxes, columns);
    }
    case ScaleTile::block_1x128:
      return write_line_codes(stream, first, to, nullptr, nullptr);
    case ScaleTile::block_128x128:
      return write_block_codes(stream, first, to);
    case ScaleTile::mx_1x32:
      fail(ExitCode::internal, "no producer writes MX codes");
  }
}

}  // namespace octet::kernels::cuda
