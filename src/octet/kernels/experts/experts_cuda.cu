#include <cuda_runtime.h>

#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/experts/experts_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kOrderThreads = 1024;
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
  using Scan = cub::BlockScan<int, kOrderThreads>;
  __shared__ typename Scan::TempStorage memory;
  const int expert = static_cast<int>(blockIdx.x);
  int next = 0;
  for (int e = 0; e < expert; ++e) next += (counts[e] + multiple - 1) / multiple * multiple;
  for (std::int64_t first = 0; first < assignments; first += kOrderThreads) {
    const std::int64_t i = first + threadIdx.x;
    const int mine = i < assignments && experts[i] == expert ? 1 : 0;
    int before = 0, all = 0;
    Scan(memory).ExclusiveSum(mine, before, all);
    if (mine) rows[i] = next + before;
    next += all;
    __syncthreads();  // the next iteration uses `memory` again
  }
}

// One block writes all numbers. There are a few hundred groups and tiles.
__global__ void __launch_bounds__(kOrderThreads)
    group_rows_kernel(const std::int32_t* counts, int groups, std::int32_t* first, std::int32_t* tiles, int tile_count) {
  constexpr int kRows = static_cast<int>(kGroupRows);
  if (threadIdx.x == 0) {
    int end = 0;
    for (int g = 0; g < groups; ++g) {
      first[g] = end;
      end += (counts[g] + kRows - 1) / kRows * kRows;
    }
    first[groups] = end;
  }
  __syncthreads();
  const int used = first[groups] / kRows;
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
  require_bf16("clear_gaps", op.x);
  require(op.x.cols() % 2 == 0, "clear_gaps on CUDA: ", op.x.cols(), " columns");
  const dim3 grid(static_cast<unsigned>(op.groups.size()), static_cast<unsigned>(kGroupRows - 1));
  clear_gaps_kernel<<<grid, kRowThreads, 0, native_stream(stream)>>>(
      op.groups.counts.as<std::int32_t>(), op.groups.first.as<std::int32_t>(),
      reinterpret_cast<std::uint32_t*>(op.x.as<BFloat16>()), op.x.cols() / 2);
  check_launch("clear_gaps");
}

void expert_scatter(Stream& stream, const ExpertScatter& op) {
  require_bf16("expert_scatter", op.x);
  if (op.x.rows() == 0) return;
  const Rows a{.x = op.x.as<BFloat16>(),
               .x_stride = op.x.row_stride,
               .rows = op.rows.as<std::int32_t>(),
               .weights = op.weights ? op.weights.as<float>() : nullptr,
               .residual = nullptr,
               .residual_stride = 0,
               .y = op.y.as<BFloat16>(),
               .y_stride = op.y.row_stride,
               .k = static_cast<int>(op.rows.cols()),
               .width = static_cast<int>(op.x.cols())};
  const auto kernel = in_vectors(op.x) && in_vectors(op.y) ? scatter_kernel<kVector> : scatter_kernel<1>;
  kernel<<<static_cast<unsigned>(op.x.rows()), kRowThreads, 0, native_stream(stream)>>>(a);
  check_launch("expert_scatter");
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
