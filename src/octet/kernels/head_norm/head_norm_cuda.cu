#include "octet/device/cuda/cuda.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/head_norm/head_norm_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostPairs = 4;  // the most pairs of elements of a head that one lane holds

// Each warp normalises one head at a time. Lane l computes the pairs l, l + 32, ...
struct Heads {
  unsigned* x;          // pairs of BF16
  std::int64_t stride;  // of a row, in pairs
  unsigned* before;     // rows are contiguous
  float* rstd;
  const unsigned *q_weight, *k_weight;
  int rows, q_heads, heads, pairs;  // pairs of a head

  __device__ unsigned* at(int row, int head) const { return x + row * stride + head * pairs; }
  __device__ unsigned* before_at(int row, int head) const { return before + (std::int64_t{row} * heads + head) * pairs; }
  __device__ const unsigned* weight(int head) const { return head < q_heads ? q_weight : k_weight; }
  __device__ float mean(float sum) const {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    return sum / static_cast<float>(2 * pairs);
  }
};

// Calls body(i, pair) for the pairs of this lane, i counting them.
template <class Body>
__device__ void for_pairs(int pairs, Body body) {
#pragma unroll
  for (int i = 0; i < kMostPairs; ++i) {
    const int pair = static_cast<int>(threadIdx.x) % 32 + 32 * i;
    if (pair < pairs) body(i, pair);
  }
}

__global__ void __launch_bounds__(kThreads) forward_kernel(const Heads op, float epsilon) {
  const std::int64_t task = std::int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(task / op.heads), head = static_cast<int>(task % op.heads);
  if (row >= op.rows) return;
  unsigned* const x = op.at(row, head);
  unsigned* const before = op.before_at(row, head);
  const unsigned* const weight = op.weight(head);
  unsigned words[kMostPairs];
  float squares = 0.0f;
  for_pairs(op.pairs, [&](int i, int pair) {
    words[i] = x[pair];
    squares = fmaf(low_of(words[i]), low_of(words[i]), squares);
    squares = fmaf(high_of(words[i]), high_of(words[i]), squares);
  });
  const float rstd = 1.0f / sqrtf(op.mean(squares) + epsilon);
  if (threadIdx.x % 32 == 0) op.rstd[task] = rstd;
  for_pairs(op.pairs, [&](int i, int pair) {
    before[pair] = words[i];
    x[pair] = to_bf16(low_of(words[i]) * rstd * low_of(weight[pair]), high_of(words[i]) * rstd * high_of(weight[pair]));
  });
}

// A block has `rows_per_block` rows, and writes the sums of gweight over them to row blockIdx.x of the partial sums. Each warp
// adds up its own heads in their order, then the warps are added in theirs.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const Heads op, int rows_per_block, float* q_partials, float* k_partials) {
  __shared__ float2 shares[kWarps][32 * kMostPairs];
  const int begin = static_cast<int>(blockIdx.x) * rows_per_block, end = min(op.rows, begin + rows_per_block);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int part = 0; part < 2; ++part) {
    const int first = part == 0 ? 0 : op.q_heads, last = part == 0 ? op.q_heads : op.heads;
    float2 sums[kMostPairs] = {};
    for (int row = begin; row < end; ++row) {
      for (int head = first + warp; head < last; head += kWarps) {
        unsigned* const g = op.at(row, head);
        const unsigned* const x = op.before_at(row, head);
        const unsigned* const weight = op.weight(head);
        const float rstd = op.rstd[std::int64_t{row} * op.heads + head];
        float2 gs[kMostPairs], ns[kMostPairs], ws[kMostPairs];
        float dot = 0.0f;
        for_pairs(op.pairs, [&](int i, int pair) {
          gs[i] = {low_of(g[pair]), high_of(g[pair])};
          ns[i] = {low_of(x[pair]) * rstd, high_of(x[pair]) * rstd};
          ws[i] = {low_of(weight[pair]), high_of(weight[pair])};
          dot = fmaf(gs[i].x * ws[i].x, ns[i].x, dot);
          dot = fmaf(gs[i].y * ws[i].y, ns[i].y, dot);
        });
        const float mean = op.mean(dot);
        for_pairs(op.pairs, [&](int i, int pair) {
          g[pair] = to_bf16(rstd * (gs[i].x * ws[i].x - ns[i].x * mean), rstd * (gs[i].y * ws[i].y - ns[i].y * mean));
          sums[i].x = fmaf(gs[i].x, ns[i].x, sums[i].x);
          sums[i].y = fmaf(gs[i].y, ns[i].y, sums[i].y);
        });
      }
    }
    for_pairs(op.pairs, [&](int i, int pair) { shares[warp][pair] = sums[i]; });
    __syncthreads();
    auto* const partials = reinterpret_cast<float2*>(part == 0 ? q_partials : k_partials) + std::int64_t{blockIdx.x} * op.pairs;
    for (int pair = static_cast<int>(threadIdx.x); pair < op.pairs; pair += kThreads) {
      float2 sum = shares[0][pair];
      for (int other = 1; other < kWarps; ++other) {
        sum.x += shares[other][pair].x;
        sum.y += shares[other][pair].y;
      }
      partials[pair] = sum;
    }
    __syncthreads();
  }
}

Heads heads_of(const HeadNorm& norm, const Tensor& x, const Tensor& before, const Tensor& rstd) {
  require(x.dtype == DType::bf16, "head_norm: activations on CUDA are BF16, got ", name_of(x.dtype));
  require(norm.head_dim <= 64 * kMostPairs, "head_norm: heads of ", norm.head_dim, " on CUDA: at most ", 64 * kMostPairs);
  require(x.row_stride % 2 == 0 && on_multiple(x.data, 4), "head_norm: rows of x must begin at multiples of 4 bytes");
  return {.x = reinterpret_cast<unsigned*>(x.as<BFloat16>()),
          .stride = x.row_stride / 2,
          .before = reinterpret_cast<unsigned*>(before.as<BFloat16>()),
          .rstd = rstd.as<float>(),
          .q_weight = reinterpret_cast<const unsigned*>(norm.q_weight.as<BFloat16>()),
          .k_weight = reinterpret_cast<const unsigned*>(norm.k_weight.as<BFloat16>()),
          .rows = static_cast<int>(x.rows()),
          .q_heads = static_cast<int>(norm.q_heads),
          .heads = static_cast<int>(norm.heads()),
          .pairs = static_cast<int>(norm.head_dim / 2)};
}

}  // namespace

void head_norm_forward(Stream& stream, const HeadNormForward& op) {
  const Heads heads = heads_of(op.norm, op.x, op.before, op.rstd);
  if (op.x.rows() == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(op.x.rows() * op.norm.heads(), std::int64_t{kWarps}));
  forward_kernel<<<blocks, kThreads, 0, octet::cuda::native_stream(stream)>>>(heads, static_cast<float>(op.epsilon));
  octet::cuda::check_launch("head_norm_forward");
}

void head_norm_backward(Stream& stream, const HeadNormBackward& op, const Tensor& q_partials, const Tensor& k_partials) {
  const Heads heads = heads_of(op.norm, op.g, op.before, op.rstd);
  if (op.g.rows() == 0) return;
  backward_kernel<<<static_cast<unsigned>(q_partials.rows()), kThreads, 0, octet::cuda::native_stream(stream)>>>(
      heads, static_cast<int>(rows_per_partial(op.g.rows())), q_partials.as<float>(), k_partials.as<float>());
  octet::cuda::check_launch("head_norm_backward");
  add_partials(stream, q_partials, op.gq_weight);
  add_partials(stream, k_partials, op.gk_weight);
}

}  // namespace octet::kernels::cuda
