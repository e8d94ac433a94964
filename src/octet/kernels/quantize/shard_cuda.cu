#include <limits>

#include "octet/kernels/quantize/amax_epilogue_cuda.cuh"
#include "octet/kernels/quantize/cast_list_cuda.h"
#include "octet/kernels/quantize/codes_cuda.cuh"
#include "octet/kernels/quantize/items_cuda.cuh"
#include "octet/kernels/quantize/magnitudes_cuda.cuh"
#include "octet/kernels/quantize/shard_cuda.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kBlock = 128, kMx = 32;
constexpr int kThreads = 256;
static_assert(kThreads == kCastThreads && kThreads == kScalesOfChunk);

// The values in BF16, rounded as on the CPU.
__device__ inline Bf16Vector rounded(const Bf16Vector& values) { return values; }
__device__ inline Bf16Vector rounded(const Vector<float>& values) { return round_like_cpu(values); }

template <class F>
void visit_source(DType dtype, F f) {
  if (dtype == DType::bf16) return f.template operator()<BFloat16>();
  f.template operator()<float>();
}

// Rows [first_row, first_row + rows) of W, of tiles that hold elements of the shard. Elements of other shards are zero.
template <class T>
struct ShardSource : Extent {
  static constexpr int kParts = 1, kAhead = sizeof(T) == 2 ? 8 : 4, kBlocks = 4, kAcross = 1;
  struct Column {};
  using Raw = Vector<T>;
  const T* x;
  std::int64_t first, count;  // of the shard, in elements after the first element of the extent
  std::int64_t first_row;

  explicit ShardSource(const Shard& shard) : x(shard.x.as<T>()), count(shard.x.elements()) {
    const std::int64_t width = shard.whole[1], end = shard.first + count;
    first_row = shard.first / width / kTile * kTile;
    first = shard.first - first_row * width;
    rows = static_cast<int>(ceil_div(end, width) - first_row);
    cols = static_cast<int>(width);
    wide = on_multiple(x, 16) && width % kVector == 0;  // shards of such rows begin and end at whole vectors
  }

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const std::int64_t at = offset(row, col);
    return at >= 0 && at < count ? load_vector(x + at) : Raw{};
  }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const { made[0] = rounded(raw); }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    const std::int64_t at = offset(row, col);
    made[0].bits = at >= 0 && at < count ? BFloat16(x[at]).bits : std::uint16_t{0};
  }

 private:
  __device__ std::int64_t offset(int row, int col) const { return std::int64_t{row} * cols + col - first; }
};

// Computes the amax of each 128x128 block.
struct BlockAmaxEpilogue {
  struct Shared {};
  struct State {};
  float* amax;  // amax of the extent's first block
  std::int64_t stride;

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], State, Shared&) const {
    const float largest = magnitude_value(warp_magnitude(values));
    if (tile.lane() == 0) raise(amax + tile.row0 / kBlock * stride + tile.col0 / kBlock, largest);
  }
};

// Computes the amaxes of 32 columns of a row and of 32 rows of a column. Each may be absent.
struct MxAmaxEpilogue {
  static constexpr int kGroups = kTile / kMx, kWarps = kTileThreads / 32 / kGroups;  // warps per group of rows
  using Shared = ColumnMagnitudes;
  struct State {};
  float* rows;
  std::int64_t rows_stride;
  float* columns;
  std::int64_t columns_stride;

  __device__ State begin(int) const { return {}; }
  __device__ void finish(const Tile& tile, const Bf16Vector (&values)[kTileRows], State, Shared& shared) const {
    if (rows) {
      unsigned pairs[kTileRows / 2];
      row_magnitudes<kMx / kVector>(values, pairs);
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) {
        const int row = tile.row(i), col = tile.col();
        if (col % kMx == 0 && row < tile.rows && col < tile.cols) {
          raise(rows + row * rows_stride + col / kMx, magnitude_value(row_of_pairs(pairs, i)));
        }
      }
    }
    if (columns) {
      shared.put(tile, values);
      __syncthreads();
      const int column = static_cast<int>(threadIdx.x) % kTile, col = tile.col0 + column;
      for (int group = static_cast<int>(threadIdx.x) / kTile; group < kGroups; group += kTileThreads / kTile) {
        const int row = tile.row0 + group * kMx;
        if (row >= tile.rows || col >= tile.cols) continue;
        raise(columns + row / kMx * columns_stride + col, magnitude_value(shared.get<kWarps>(column, group * kWarps)));
      }
    }
  }
};

// One thread per scale, in the order in which scale_inv stores them.
struct Scales {
  const float* amax;
  QuantSpec spec;
  float* multipliers;
  void* scale_inv;
  std::int64_t rows, cols, stride;  // stride of scale_inv
  bool transposed;                  // amaxes are [down, rows]; scales from `down` on are padding
  std::int64_t down;
};

__device__ void compute_scales(const Scales& op, std::int64_t chunk) {
  constexpr std::uint8_t kOne = 127;
  const std::int64_t i = chunk * kThreads + threadIdx.x;
  if (i >= op.rows * op.cols) return;
  const std::int64_t row = i / op.cols, k = i % op.cols, at = row * op.stride + k;
  const bool padding = op.transposed && k >= op.down;
  const std::int64_t from = op.transposed ? k * op.rows + row : i;
  if (op.spec.tile == ScaleTile::mx_1x32) {
    const std::uint8_t code = padding ? kOne : mx_scale_code(op.amax[from]);
    static_cast<std::uint8_t*>(op.scale_inv)[at] = code;
    if (!padding) op.multipliers[from] = e8m0_reciprocal(code);
    return;
  }
  const float scale = device_scale(op.amax[from], op.spec);
  static_cast<float*>(op.scale_inv)[at] = 1.0f / scale;
  op.multipliers[from] = scale;
}

__global__ void __launch_bounds__(kThreads) scales_kernel(const Scales op) { compute_scales(op, blockIdx.x); }
__global__ void __launch_bounds__(kThreads) scales_of_items_kernel(const CastItem* items, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  compute_scales(item_at<Scales>(items, chunk.item), chunk.number);
}

// Each thread casts vectors that are kThreads apart. If `wide`, vectors
// are whole, aligned to 16 bytes, and do not cross rows of W.
template <class T>
struct Cast {
  static constexpr int kAhead = cast_ahead(sizeof(T));  // vectors per thread, all of whose loads are in flight at once
  const T* x;
  std::int64_t first, count, cols;
  ScaleTile tile;
  std::uint8_t* codes;
  const float* multipliers;
  std::int64_t stride;  // stride of multipliers
  std::uint8_t* column_codes;
  const float* column_multipliers;
  float* scale_inv;
  float* amax;
  bool wide;

  // The indices of an element's multiplier and of its multiplier along columns.
  __device__ std::int64_t by_rows(std::int64_t row, std::int64_t col) const {
    switch (tile) {
      case ScaleTile::row:
        return row;
      case ScaleTile::block_128x128:
        return row / kBlock * stride + col / kBlock;
      case ScaleTile::mx_1x32:
        return row * stride + col / kMx;
      default:
        return 0;
    }
  }
  __device__ std::int64_t by_columns(std::int64_t row, std::int64_t col) const {
    return tile == ScaleTile::row ? col : row / kMx * cols + col;
  }
};

// Casts the vector at element `at` of the shard, which is vector `vector` of W.
template <Fp8Format kFormat, class T>
__device__ void cast_vector(const Cast<T>& op, const Bf16Vector& values, std::int64_t at, unsigned vector) {
  unsigned row = 0, col = 0;
  if (op.tile != ScaleTile::tensor) {
    const unsigned per_row = static_cast<unsigned>(op.cols) / kVector;
    row = vector / per_row;
    col = vector % per_row * kVector;
  }
  if (op.codes) *reinterpret_cast<uint2*>(op.codes + at) = encode<kFormat>(values, __ldg(op.multipliers + op.by_rows(row, col)));
  if (op.column_codes) {
    const auto* const from = reinterpret_cast<const float4*>(op.column_multipliers + op.by_columns(row, col));
    const float4 scales[] = {__ldg(from), __ldg(from + 1)};
    *reinterpret_cast<uint2*>(op.column_codes + at) = encode<kFormat>(values, scales);
  }
}

// Casts one element. Returns the bits of its magnitude.
template <Fp8Format kFormat, class T>
__device__ unsigned cast_element(const Cast<T>& op, std::int64_t at) {
  const std::int64_t row = (op.first + at) / op.cols, col = (op.first + at) % op.cols;
  const unsigned bits = BFloat16(op.x[at]).bits;
  const auto code = [&](float scale) { return static_cast<std::uint8_t>(encode_pair<kFormat>(bits, scale, scale)); };
  if (op.codes) op.codes[at] = code(op.multipliers[op.by_rows(row, col)]);
  if (op.column_codes) op.column_codes[at] = code(op.column_multipliers[op.by_columns(row, col)]);
  return bits & 0x7FFFu;
}

template <Fp8Format kFormat, class T>
__device__ __forceinline__ void cast_chunk(const Cast<T>& op, std::int64_t chunk) {
  constexpr int kAhead = Cast<T>::kAhead;
  if (op.scale_inv && chunk == 0 && threadIdx.x == 0) *op.scale_inv = 1.0f / *op.multipliers;
  const unsigned so_far = op.amax ? __float_as_uint(*op.amax) : 0u;  // avoids atomic operations by warps that cannot raise it
  const std::int64_t begin = (chunk * kAhead * kThreads + threadIdx.x) * kVector;
  unsigned largest = 0;
  if (op.wide) {
    Vector<T> raw[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = begin + i * kThreads * kVector;
      if (at + kVector <= op.count) raw[i] = load_vector(op.x + at);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = begin + i * kThreads * kVector;
      if (at + kVector > op.count) continue;
      const Bf16Vector values = rounded(raw[i]);
      largest = max_pair(largest, magnitudes(values));
      cast_vector<kFormat>(op, values, at, static_cast<unsigned>((op.first + at) / kVector));
    }
    largest = max(largest & 0xFFFFu, largest >> 16);
  }
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    const std::int64_t at = begin + i * kThreads * kVector,
                       end = min(static_cast<long long>(at + kVector), static_cast<long long>(op.count));
    if (op.wide && at + kVector <= op.count) continue;
    for (std::int64_t k = at; k < end; ++k) largest = max(largest, cast_element<kFormat>(op, k));
  }
  if (!op.amax) return;
  largest = __reduce_max_sync(kAllLanes, largest) << 16;
  if (threadIdx.x % 32 == 0 && largest > so_far) raise(op.amax, __uint_as_float(largest));
}

template <Fp8Format kFormat, class T>
__global__ void __launch_bounds__(kThreads, 4) cast_kernel(const Cast<T> op) {
  cast_chunk<kFormat>(op, blockIdx.x);
}
template <Fp8Format kFormat, class T>
__global__ void __launch_bounds__(kThreads, 4) cast_items_kernel(const CastItem* items, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const Cast<T> op = item_at<Cast<T>>(items, chunk.item);
  cast_chunk<kFormat>(op, chunk.number);
}

// Calls f(source, epilogue).
template <class F>
void with_amax(const ShardAmax& op, F f) {
  visit_source(op.shard.x.dtype, [&]<class T>() {
    const ShardSource<T> source(op.shard);
    float* const rows = scales_of(op.rows);
    float* const columns = scales_of(op.columns);
    const std::int64_t stride = op.rows ? op.rows.cols() : 0, cols = op.shard.whole[1];
    switch (op.tile) {
      case ScaleTile::tensor:
        return f(source, AmaxEpilogue{.whole = rows});
      case ScaleTile::row:
        return f(source, AmaxEpilogue{.rows = rows ? rows + source.first_row : nullptr, .columns = columns});
      case ScaleTile::block_128x128:
        return f(source, BlockAmaxEpilogue{.amax = rows + source.first_row / kBlock * stride, .stride = stride});
      default:  // MX
        f(source, MxAmaxEpilogue{.rows = rows ? rows + source.first_row * stride : nullptr,
                                 .rows_stride = stride,
                                 .columns = columns ? columns + source.first_row / kMx * cols : nullptr,
                                 .columns_stride = cols});
    }
  });
}

template <class Source, class Epilogue>
struct AmaxItem {
  Source source;
  Epilogue amax;
};
struct AmaxOfItem {
  template <class Item>
  static __device__ auto epilogue(const Item& item, float*) {
    return item.amax;
  }
};

Scales arguments_of(const ScalesFromAmax& op) {
  const Tensor& scales = op.scale_inv;
  return {.amax = op.amax.as<float>(),
          .spec = op.spec,
          .multipliers = op.multipliers.as<float>(),
          .scale_inv = scales.data,
          .rows = scales.rows(),
          .cols = scales.cols(),
          .stride = scales.row_stride,
          .transposed = op.along == Along::columns && op.spec.tile == ScaleTile::mx_1x32,
          .down = op.amax.rows()};
}

template <class T>
Cast<T> cast_of(const CastShard& op) {
  const std::int64_t cols = op.shard.whole[1];
  const bool rows_are_vectors = op.spec.tile == ScaleTile::tensor || cols % kVector == 0;
  const bool countable = op.shard.whole.elements() / kVector <= std::numeric_limits<unsigned>::max();
  return {.x = op.shard.x.as<T>(),
          .first = op.shard.first,
          .count = op.shard.x.elements(),
          .cols = cols,
          .tile = op.spec.tile,
          .codes = op.codes.as_bytes(),
          .multipliers = op.scale ? op.scale : scales_of(op.multipliers),
          .stride = op.multipliers ? op.multipliers.cols() : 0,
          .column_codes = op.column_codes.as_bytes(),
          .column_multipliers = scales_of(op.column_multipliers),
          .scale_inv = scales_of(op.scale_inv),
          .amax = op.amax,
          .wide = rows_are_vectors && countable && on_multiple(op.shard.x.data, 16) && on_multiple(op.codes.data, kVector) &&
                  on_multiple(op.column_codes.data, kVector) && on_multiple(op.column_multipliers.data, 16)};
}

// Calls f.template operator()<kFormat, T>() for the format and the dtype of an op.
template <class F>
void visit_cast(const CastShard& op, F f) {
  visit_source(op.shard.x.dtype, [&]<class T>() {
    visit_format(op.spec.format, [&]<Fp8Format kFormat>() { f.template operator()<kFormat, T>(); });
  });
}

}  // namespace

void shard_amax(Stream& stream, const ShardAmax& op) {
  with_amax(op, [&](const auto& source, const auto& epilogue) { launch_tiles(stream, source, epilogue); });
}

void scales_from_amax(Stream& stream, const ScalesFromAmax& op) {
  const Scales all = arguments_of(op);
  const auto blocks = static_cast<unsigned>(ceil_div(all.rows * all.cols, kThreads));
  scales_kernel<<<blocks, kThreads, 0, octet::cuda::native_stream(stream)>>>(all);
  octet::cuda::check_launch("scales_from_amax");
}

void cast_shard(Stream& stream, const CastShard& op) {
  const std::int64_t count = op.shard.x.elements();
  if (count == 0 && !op.scale) return;
  visit_cast(op, [&]<Fp8Format kFormat, class T>() {
    const auto blocks = static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(count, Cast<T>::kAhead * kThreads * kVector)));
    cast_kernel<kFormat><<<blocks, kThreads, 0, octet::cuda::native_stream(stream)>>>(cast_of<T>(op));
    octet::cuda::check_launch("cast_shard");
  });
}

CastItem item_of(const ShardAmax& op) {
  CastItem result;
  with_amax(op, [&]<class Source, class Epilogue>(const Source& source, const Epilogue& epilogue) {
    result = as_item(AmaxItem<Source, Epilogue>{source, epilogue});
  });
  return result;
}
CastItem item_of(const ScalesFromAmax& op) { return as_item(arguments_of(op)); }
CastItem item_of(const CastShard& op) {
  CastItem result;
  visit_source(op.shard.x.dtype, [&]<class T>() { result = as_item(cast_of<T>(op)); });
  return result;
}

void shard_amax(Stream& stream, const CastList<ShardAmax>& list) {
  with_amax(list.ops().front(), [&]<class Source, class Epilogue>(const Source&, const Epilogue&) {
    launch_items<AmaxItem<Source, Epilogue>, AmaxOfItem, Epilogue>(stream, list.table(), nullptr);
  });
}

void scales_from_amax(Stream& stream, const CastList<ScalesFromAmax>& list) {
  scales_of_items_kernel<<<static_cast<unsigned>(list.table().chunks()), kThreads, 0, octet::cuda::native_stream(stream)>>>(
      list.table().items_of_device(), list.table().chunks_of_device());
  octet::cuda::check_launch("scales_from_amax");
}

void cast_shard(Stream& stream, const CastList<CastShard>& list) {
  visit_cast(list.ops().front(), [&]<Fp8Format kFormat, class T>() {
    cast_items_kernel<kFormat, T>
        <<<static_cast<unsigned>(list.table().chunks()), kThreads, 0, octet::cuda::native_stream(stream)>>>(
            list.table().items_of_device(), list.table().chunks_of_device());
    octet::cuda::check_launch("cast_shard");
  });
}

}  // namespace octet::kernels::cuda
