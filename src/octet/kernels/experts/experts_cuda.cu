#include <cuda_runtime.h>

#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/experts/experts_cuda.h"
#include "octet/kernels/quantize/codes_cuda.cuh"
#include "octet/kernels/quantize/magnitudes_cuda.cuh"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kOrderThreads = 1024;
constexpr int kOrderItems = 8;  // assignments that a thread looks at before the block adds up
using OrderScan = cub::BlockScan<int, kOrderThreads>;
constexpr int kRowThreads = 128;

__device__ void store(BFloat16* to, const float (&values)[kVector]) { store_packed(to, values); }
__device__ void store(BFloat16* to, const float (&value)[1]) { *to = to_bf16(value[0]); }
template <int kElements>
__device__ void load(float (&out)[kElements], const BFloat16* from) {
  unpack(piece_at<kElements>(from), out);
}

__global__ void __launch_bounds__(kOrderThreads)
    count_kernel(const std::int32_t* experts, std::int64_t assignments, std::int32_t* counts) {
  int count = 0;
  for (std::int64_t i = threadIdx.x; i < assignments; i += kOrderThreads) count += experts[i] == static_cast<int>(blockIdx.x);
  count = block_sum(count);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// One block per expert goes over all assignments in their order.
__global__ void __launch_bounds__(kOrderThreads) order_kernel(const std::int32_t* experts, std::int64_t assignments,
                                                              const std::int32_t* counts, int multiple, std::int32_t* rows) {
  __shared__ typename OrderScan::TempStorage memory;
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  int padded = 0, before = 0, next = 0;
  for (int e = thread; e < expert; e += kOrderThreads) padded += (counts[e] + multiple - 1) / multiple * multiple;
  OrderScan(memory).ExclusiveSum(padded, before, next);
  for (std::int64_t first = 0; first < assignments; first += kOrderThreads * kOrderItems) {
    const std::int64_t begin = first + thread * kOrderItems;
    bool is_mine[kOrderItems];
    int mine = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kOrderItems; ++i) mine += is_mine[i] = begin + i < assignments && experts[begin + i] == expert;
    __syncthreads();  // the scan before has ended
    OrderScan(memory).ExclusiveSum(mine, before, all);
#pragma unroll
    for (int i = 0; i < kOrderItems; ++i) {
      if (is_mine[i]) rows[begin + i] = next + before++;
    }
    next += all;
  }
}

// One block writes all numbers. There are a few hundred groups and tiles.
__global__ void __launch_bounds__(kOrderThreads)
    group_rows_kernel(const std::int32_t* counts, int groups, std::int32_t* first, std::int32_t* tiles, int tile_count) {
  constexpr int kRows = static_cast<int>(kGroupRows);
  __shared__ typename OrderScan::TempStorage memory;
  int end = 0;
  for (int begin = 0; begin < groups; begin += kOrderThreads) {
    const int g = begin + static_cast<int>(threadIdx.x);
    int before = 0, all = 0;
    OrderScan(memory).ExclusiveSum(g < groups ? (counts[g] + kRows - 1) / kRows * kRows : 0, before, all);
    if (g < groups) first[g] = end + before;
    end += all;
    __syncthreads();  // the next iteration uses `memory` again
  }
  if (threadIdx.x == 0) first[groups] = end;
  __syncthreads();
  const int used = end / kRows;
  for (int tile = static_cast<int>(threadIdx.x); tile < tile_count; tile += kOrderThreads) {
    int group = -1;
    if (tile < used) {
      int low = 0, high = groups - 1;  // the last group that begins at the tile or before it, and is not empty
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] <= tile * kRows) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      group = low;
    }
    tiles[tile] = group;
  }
}

// One block per row that a gap could have, for all groups.
__global__ void __launch_bounds__(kRowThreads)
    clear_gaps_kernel(const std::int32_t* counts, const std::int32_t* first, std::uint32_t* x, std::int64_t words) {
  const int group = static_cast<int>(blockIdx.x);
  const std::int64_t row = first[group] + counts[group] + static_cast<std::int64_t>(blockIdx.y);
  if (row >= first[group + 1]) return;
  for (std::int64_t i = threadIdx.x; i < words; i += kRowThreads) x[row * words + i] = 0;
}

struct Rows {
  const BFloat16* x;
  std::int64_t x_stride;
  const std::int32_t* rows;
  const float* weights;      // may be null
  const BFloat16* residual;  // may be null
  std::int64_t residual_stride;
  BFloat16* y;
  std::int64_t y_stride;
  int k, width;
};

// Codes of rows that are scaled by their experts.
struct Cast {
  const std::int32_t* experts;
  const float* scale;
  float* amax;  // may be null
  std::int64_t scale_stride, amax_stride;
  std::uint8_t* codes;
  std::int64_t stride;
};

__device__ Bf16Vector as_vector(const Bf16Vector& piece) { return piece; }
__device__ Bf16Vector as_vector(BFloat16 element) { return {{{element.bits, 0, 0, 0}}}; }
__device__ Bf16Vector rounded(const float (&values)[kVector]) { return pack(values); }
__device__ Bf16Vector rounded(const float (&value)[1]) { return as_vector(to_bf16(value[0])); }
__device__ void store_codes(std::uint8_t* to, uint2 codes, const Bf16Vector&) { *reinterpret_cast<uint2*>(to) = codes; }
__device__ void store_codes(std::uint8_t* to, uint2 codes, BFloat16) { *to = static_cast<std::uint8_t>(codes.x); }

// One block per assignment. The values are those that scatter_kernel stores.
template <Fp8Format kFormat, int kElements>
__global__ void __launch_bounds__(kRowThreads) scatter_codes_kernel(const Rows a, const Cast to) {
  const std::int64_t i = blockIdx.x;
  const BFloat16* const x = a.x + i / a.k * a.x_stride;
  std::uint8_t* const codes = to.codes + a.rows[i] * to.stride;
  const int expert = to.experts[i];
  const float scale = to.scale[expert * to.scale_stride];
  unsigned largest = 0;
  for (int col = static_cast<int>(threadIdx.x) * kElements; col < a.width; col += kRowThreads * kElements) {
    const auto piece = piece_at<kElements>(x + col);
    Bf16Vector vector = as_vector(piece);
    if (a.weights) {
      float values[kElements];
      unpack(piece, values);
      for (float& value : values) value *= a.weights[i];
      vector = rounded(values);
    }
    store_codes(codes + col, encode<kFormat>(vector, scale), piece);
    largest = max_pair(largest, magnitudes(vector));
  }
  if (!to.amax) return;
  largest = __reduce_max_sync(kAllLanes, max(largest & 0xFFFFu, largest >> 16)) << 16;
  float* const amax = to.amax + expert * to.amax_stride;
  if (threadIdx.x % 32 == 0 && largest > __float_as_uint(*amax)) raise(amax, __uint_as_float(largest));
}

// One warp per token.
template <int kElements>
__global__ void __launch_bounds__(kRowThreads)
    amax_kernel(const BFloat16* x, std::int64_t x_stride, const std::int32_t* experts, const float* weights, std::int64_t tokens,
                int k, int width, float* amax) {
  const std::int64_t t = (blockIdx.x * kRowThreads + threadIdx.x) / 32;
  if (t >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned pair = 0;
  for (int col = lane * kElements; col < width; col += 32 * kElements)
    pair = max_pair(pair, magnitudes(as_vector(piece_at<kElements>(x + t * x_stride + col))));
  const float largest = __uint_as_float(__reduce_max_sync(kAllLanes, max(pair & 0xFFFFu, pair >> 16)) << 16);
  for (int s = lane; s < k; s += 32) {
    const std::int64_t i = t * k + s;
    const float product = weights ? fabsf(static_cast<float>(to_bf16(largest * weights[i]))) : largest;
    float* const to = amax + experts[i];
    if (__float_as_uint(product) > __float_as_uint(*to)) raise(to, product);
  }
}

// One block per token.
template <int kElements>
__global__ void __launch_bounds__(kRowThreads) scatter_kernel(const Rows a) {
  const std::int64_t t = blockIdx.x;
  for (int col = static_cast<int>(threadIdx.x) * kElements; col < a.width; col += kRowThreads * kElements) {
    const BFloat16* const from = a.x + t * a.x_stride + col;
    const auto piece = piece_at<kElements>(from);
    for (int s = 0; s < a.k; ++s) {
      BFloat16* const to = a.y + a.rows[t * a.k + s] * a.y_stride + col;
      if (!a.weights) {
        *reinterpret_cast<Piece<kElements>*>(to) = piece;
        continue;
      }
      float values[kElements];
      unpack(piece, values);
      for (float& value : values) value *= a.weights[t * a.k + s];
      store(to, values);
    }
  }
}

template <int kElements>
__global__ void __launch_bounds__(kRowThreads) combine_kernel(const Rows a) {
  const std::int64_t t = blockIdx.x;
  for (int col = static_cast<int>(threadIdx.x) * kElements; col < a.width; col += kRowThreads * kElements) {
    float sums[kElements] = {};
    if (a.residual) load<kElements>(sums, a.residual + t * a.residual_stride + col);
    for (int s = 0; s < a.k; ++s) {
      float values[kElements];
      load<kElements>(values, a.x + a.rows[t * a.k + s] * a.x_stride + col);
      const float weight = a.weights ? a.weights[t * a.k + s] : 1.0f;
      for (int i = 0; i < kElements; ++i) sums[i] += weight * values[i];
    }
    store(a.y + t * a.y_stride + col, sums);
  }
}

// One block per assignment.
template <int kElements>
__global__ void __launch_bounds__(kRowThreads)
    dot_kernel(const BFloat16* gy, std::int64_t gy_stride, const BFloat16* x, std::int64_t x_stride, const std::int32_t* rows,
               int k, int width, float* gweights) {
  const std::int64_t i = blockIdx.x;
  gy += i / k * gy_stride;
  x += rows[i] * x_stride;
  float sum = 0;
  for (int col = static_cast<int>(threadIdx.x) * kElements; col < width; col += kRowThreads * kElements) {
    float a[kElements], b[kElements];
    load<kElements>(a, gy + col);
    load<kElements>(b, x + col);
    for (int j = 0; j < kElements; ++j) sum += a[j] * b[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) gweights[i] = sum;
}

void scatter_codes(Stream& stream, const ExpertScatter& op, const Rows& rows) {
  const Tensor& codes = op.codes.out.rowwise;
  const Cast to{.experts = op.experts.as<std::int32_t>(),
                .scale = op.codes.scale,
                .amax = op.codes.amax,
                .scale_stride = op.codes.scale_stride,
                .amax_stride = op.codes.amax_stride,
                .codes = codes.as_bytes(),
                .stride = codes.row_stride};
  const bool vectors = in_vectors(op.x) && on_multiple(to.codes, kVector) && codes.row_stride % kVector == 0;
  visit_format(op.codes.spec.format, [&]<Fp8Format kFormat>() {
    const auto kernel = vectors ? scatter_codes_kernel<kFormat, kVector> : scatter_codes_kernel<kFormat, 1>;
    kernel<<<static_cast<unsigned>(op.rows.elements()), kRowThreads, 0, native_stream(stream)>>>(rows, to);
  });
  check_launch("expert_scatter");
}

// A matrix of another dtype as BF16, for rows that are copied. The bytes of a row are even.
Tensor in_halves(const Tensor& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  require(x.cols() * bytes % 2 == 0 && x.row_stride * bytes % 2 == 0, "expert_scatter on CUDA: rows of ", x.cols(), " bytes");
  Tensor result(x.data, DType::bf16, {x.rows(), x.cols() * bytes / 2});
  result.row_stride = x.row_stride * bytes / 2;
  return result;
}

void require_bf16(const char* name, const Tensor& x) {
  require(x.dtype == DType::bf16, name, " on CUDA: ", name_of(x.dtype), ", not BF16");
}

}  // namespace

void expert_order(Stream& stream, const ExpertOrder& op) {
  const std::int64_t assignments = op.experts.elements();
  const auto experts = static_cast<unsigned>(op.counts.rows());
  std::int32_t* const counts = op.counts.as<std::int32_t>();
  count_kernel<<<experts, kOrderThreads, 0, native_stream(stream)>>>(op.experts.as<std::int32_t>(), assignments, counts);
  check_launch("expert_order");
  order_kernel<<<experts, kOrderThreads, 0, native_stream(stream)>>>(op.experts.as<std::int32_t>(), assignments, counts,
                                                                     static_cast<int>(op.multiple), op.rows.as<std::int32_t>());
  check_launch("expert_order");
}

void group_rows(Stream& stream, const GroupRows& op) {
  group_rows_kernel<<<1, kOrderThreads, 0, native_stream(stream)>>>(
      op.groups.counts.as<std::int32_t>(), static_cast<int>(op.groups.size()), op.groups.first.as<std::int32_t>(),
      op.groups.tiles.as<std::int32_t>(), static_cast<int>(op.groups.tiles.rows()));
  check_launch("group_rows");
}

void clear_gaps(Stream& stream, const ClearGaps& op) {
  const std::int64_t row_bytes = op.x.cols() * static_cast<std::int64_t>(size_of(op.x.dtype));
  require(row_bytes % 4 == 0, "clear_gaps on CUDA: rows of ", row_bytes, " bytes");
  const dim3 grid(static_cast<unsigned>(op.groups.size()), static_cast<unsigned>(kGroupRows - 1));
  clear_gaps_kernel<<<grid, kRowThreads, 0, native_stream(stream)>>>(
      op.groups.counts.as<std::int32_t>(), op.groups.first.as<std::int32_t>(), reinterpret_cast<std::uint32_t*>(op.x.as_bytes()),
      row_bytes / 4);
  check_launch("clear_gaps");
}

void expert_scatter(Stream& stream, const ExpertScatter& op) {
  if (op.x.rows() == 0) return;
  const bool copies = !op.codes && !op.weights;
  if (!copies) require_bf16("expert_scatter", op.x);
  const Tensor x = copies ? in_halves(op.x) : op.x, y = copies ? in_halves(op.y) : op.y;
  const Rows a{.x = x.as<BFloat16>(),
               .x_stride = x.row_stride,
               .rows = op.rows.as<std::int32_t>(),
               .weights = op.weights ? op.weights.as<float>() : nullptr,
               .residual = nullptr,
               .residual_stride = 0,
               .y = op.codes ? nullptr : y.as<BFloat16>(),
               .y_stride = op.codes ? 0 : y.row_stride,
               .k = static_cast<int>(op.rows.cols()),
               .width = static_cast<int>(x.cols())};
  if (op.codes) return scatter_codes(stream, op, a);
  const auto kernel = in_vectors(x) && in_vectors(y) ? scatter_kernel<kVector> : scatter_kernel<1>;
  kernel<<<static_cast<unsigned>(op.x.rows()), kRowThreads, 0, native_stream(stream)>>>(a);
  check_launch("expert_scatter");
}

void expert_amax(Stream& stream, const ExpertAmax& op) {
  stream.zero(op.amax.data, op.amax.bytes());
  const std::int64_t tokens = op.x.rows();
  if (tokens == 0) return;
  const auto kernel = in_vectors(op.x) ? amax_kernel<kVector> : amax_kernel<1>;
  kernel<<<static_cast<unsigned>(ceil_div(tokens, std::int64_t{kRowThreads / 32})), kRowThreads, 0, native_stream(stream)>>>(
      op.x.as<BFloat16>(), op.x.row_stride, op.experts.as<std::int32_t>(), op.weights ? op.weights.as<float>() : nullptr, tokens,
      static_cast<int>(op.experts.cols()), static_cast<int>(op.x.cols()), op.amax.as<float>());
  check_launch("expert_amax");
}

void expert_combine(Stream& stream, const ExpertCombine& op) {
  require_bf16("expert_combine", op.y);
  if (op.y.rows() == 0) return;
  const Rows a{.x = op.x.as<BFloat16>(),
               .x_stride = op.x.row_stride,
               .rows = op.rows.as<std::int32_t>(),
               .weights = op.weights ? op.weights.as<float>() : nullptr,
               .residual = op.residual ? op.residual.as<BFloat16>() : nullptr,
               .residual_stride = op.residual ? op.residual.row_stride : 0,
               .y = op.y.as<BFloat16>(),
               .y_stride = op.y.row_stride,
               .k = static_cast<int>(op.rows.cols()),
               .width = static_cast<int>(op.y.cols())};
  const bool vectors = in_vectors(op.x) && in_vectors(op.y) && in_vectors(op.residual);
  const auto kernel = vectors ? combine_kernel<kVector> : combine_kernel<1>;
  kernel<<<static_cast<unsigned>(op.y.rows()), kRowThreads, 0, native_stream(stream)>>>(a);
  check_launch("expert_combine");
}

void expert_dot(Stream& stream, const ExpertDot& op) {
  require_bf16("expert_dot", op.gy);
  if (op.rows.elements() == 0) return;
  const auto kernel = in_vectors(op.gy) && in_vectors(op.x) ? dot_kernel<kVector> : dot_kernel<1>;
  kernel<<<static_cast<unsigned>(op.rows.elements()), kRowThreads, 0, native_stream(stream)>>>(
      op.gy.as<BFloat16>(), op.gy.row_stride, op.x.as<BFloat16>(), op.x.row_stride, op.rows.as<std::int32_t>(),
      static_cast<int>(op.rows.cols()), static_cast<int>(op.gy.cols()), op.gweights.as<float>());
  check_launch("expert_dot");
}

}  // namespace octet::kernels::cuda
