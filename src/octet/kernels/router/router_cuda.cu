#include <cuda_runtime.h>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/router/router_cuda.h"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kTokenThreads = 128;

__device__ bool among(int e, const std::int32_t* experts, int n) {
  for (int s = 0; s < n; ++s) {
    if (experts[s] == e) return true;
  }
  return false;
}

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// A logit, or a score with its bias, and its expert. Of equal ones the first comes first; NaN comes last.
struct Choice {
  float logit;
  int expert;
  __device__ bool before(const Choice& other) const {
    return logit > other.logit || (logit == other.logit && expert < other.expert);
  }
};
__device__ Choice best_of_warp(Choice best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Choice other{__shfl_xor_sync(kAllLanes, best.logit, step), __shfl_xor_sync(kAllLanes, best.expert, step)};
    if (other.before(best)) best = other;
  }
  return best;
}
__device__ float sum_of_warp(float sum) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

// The largest logit, and the sum of exp(logit - largest), of a warp.
__device__ float largest_of_warp(const float* logits, int count, int lane) {
  Choice best{-INFINITY, count};
  for (int e = lane; e < count; e += kWarp) {
    const Choice candidate{logits[e], e};
    if (candidate.before(best)) best = candidate;
  }
  return best_of_warp(best).logit;
}
__device__ float sum_of_exp(const float* logits, int count, float largest, int lane) {
  float sum = 0;
  for (int e = lane; e < count; e += kWarp) sum += expf(logits[e] - largest);
  return sum_of_warp(sum);
}

__device__ float log_sum_exp(const float* logits, int count, int lane) {
  const float largest = largest_of_warp(logits, count, lane);
  return largest + logf(sum_of_exp(logits, count, largest, lane));
}

// One warp per token. The experts are found one after another: each is the best behind the one before.
__global__ void __launch_bounds__(kTokenThreads)
    choose_kernel(const float* all_logits, const float* bias, std::int64_t tokens, int count, int k, bool normalise,
                  std::int32_t* all_experts, float* all_weights, float* lse) {
  const std::int64_t t = (std::int64_t{blockIdx.x} * kTokenThreads + threadIdx.x) / kWarp;
  if (t >= tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const logits = all_logits + t * count;
  std::int32_t* const experts = all_experts + t * k;
  float* const weights = all_weights + t * k;
  // With a bias the largest logit need not be among those of the chosen experts.
  float largest = bias ? largest_of_warp(logits, count, lane) : 0;
  float all = bias ? sum_of_exp(logits, count, largest, lane) : 0;
  const float log_of_sum = largest + logf(all);
  Choice last{INFINITY, -1};
  float sum = 0, largest_chosen = 0;
  for (int s = 0; s < k; ++s) {
    Choice best{-INFINITY, count};
    for (int e = lane; e < count; e += kWarp) {
      const float score = bias ? expf(logits[e] - log_of_sum) + bias[e] : logits[e];
      const Choice candidate{score == score ? score : -INFINITY, e};
      if (last.before(candidate) && candidate.before(best)) best = candidate;
    }
    last = best_of_warp(best);
    const float logit = logits[last.expert];
    largest_chosen = s == 0 ? logit : fmaxf(largest_chosen, logit);
    if (lane == 0) experts[s] = last.expert;
  }
  __syncwarp();
  for (int s = 0; s < k; ++s) {
    const float weight = expf(logits[experts[s]] - largest_chosen);
    sum += weight;
    if (lane == 0) weights[s] = weight;
  }
  if (!bias) {
    largest = largest_chosen;
    all = sum_of_exp(logits, count, largest, lane);
  } else if (!normalise) {
    all *= expf(largest - largest_chosen);  // the weights are relative to the largest that was chosen
  }
  if (lane == 0) lse[t] = bias ? log_of_sum : largest + logf(all);
  const float divisor = normalise ? sum : all;
  __syncwarp();
  for (int s = lane; s < k; s += kWarp) weights[s] /= divisor;
}

// One block for each expert of each sequence. The last block sums lse^2.
constexpr int kSumThreads = 512;
__global__ void __launch_bounds__(kSumThreads)
    statistics_kernel(const float* logits, const std::int32_t* experts, const float* lse, std::int64_t tokens, int count, int k,
                      float* statistics) {
  const int e = static_cast<int>(blockIdx.x);
  const std::int64_t first = std::int64_t{blockIdx.y} * tokens;
  float* const out = statistics + std::int64_t{blockIdx.y} * (2 * count + 1);
  float sum = 0;
  int assigned = 0;
  for (std::int64_t t = first + threadIdx.x; t < first + tokens; t += kSumThreads) {
    if (e == count) {
      sum += lse[t] * lse[t];
    } else {
      sum += expf(logits[t * count + e] - lse[t]);
      assigned += among(e, experts + t * k, k);
    }
  }
  sum = block_sum(sum);
  assigned = block_sum(assigned);
  if (threadIdx.x != 0) return;
  out[count + e] = sum;
  if (e < count) out[e] = static_cast<float>(assigned);
}

// One block. Its first thread alone adds up the losses, because there are few sequences and experts.
__global__ void losses_kernel(const float* statistics, const std::int32_t* counted, std::int64_t sequences, int count,
                              double seq_len, double* total, double* loads) {
  for (int e = static_cast<int>(threadIdx.x); e < count; e += static_cast<int>(blockDim.x)) {
    for (std::int64_t b = 0; b < sequences; ++b) loads[e] += static_cast<double>(statistics[b * (2 * count + 1) + e]);
  }
  if (threadIdx.x != 0) return;
  for (std::int64_t b = 0; b < sequences; ++b, statistics += 2 * count + 1) {
    const double weight = counted ? static_cast<double>(counted[b]) / seq_len : 1.0;
    double dot = 0;
    for (int e = 0; e < count; ++e) dot += static_cast<double>(statistics[e]) * static_cast<double>(statistics[count + e]);
    total[0] += weight * (count / seq_len * dot);
    total[1] += weight * static_cast<double>(statistics[2 * count]);
  }
}

// One warp. The loads are whole numbers, so that their sum is exact in any order.
__global__ void bias_kernel(float* bias, const double* loads, int count, float rate, const float* found_inf) {
  if (*found_inf != 0.0f) return;
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kWarp) sum += loads[e];
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kWarp) {
    const double missing = sum - count * loads[e];
    bias[e] += rate * static_cast<float>((missing > 0) - (missing < 0));
  }
}

struct Backward {
  const float *logits, *weights, *gweights, *statistics;
  const std::int32_t *experts, *counted;
  float* glogits;
  std::int64_t rows, tokens;  // of all sequences; of one sequence on this rank
  float seq_len;
  int count, k;
  float balance, z;
  bool normalise;
};

// One warp per token.
__global__ void __launch_bounds__(kTokenThreads) backward_kernel(const Backward a) {
  const std::int64_t t = (std::int64_t{blockIdx.x} * kTokenThreads + threadIdx.x) / kWarp;
  if (t >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const logits = a.logits + t * a.count;
  float* const glogits = a.glogits + t * a.count;
  if (a.statistics) {
    const std::int64_t sequence = t / a.tokens;
    const float* const assigned = a.statistics + sequence * (2 * a.count + 1);
    const float weight = a.counted ? static_cast<float>(a.counted[sequence]) / a.seq_len : 1.0f;
    const float lse = log_sum_exp(logits, a.count, lane), by_z = 2 * a.z * lse;
    float mean = 0;
    for (int e = lane; e < a.count; e += kWarp) mean += (glogits[e] = expf(logits[e] - lse)) * assigned[e];
    mean = sum_of_warp(mean);
    for (int e = lane; e < a.count; e += kWarp) glogits[e] *= weight * (a.balance * (assigned[e] - mean) + by_z);
  } else {
    for (int e = lane; e < a.count; e += kWarp) glogits[e] = 0;
  }
  const std::int32_t* const experts = a.experts + t * a.k;
  const float *const w = a.weights + t * a.k, *const gw = a.gweights + t * a.k;
  float mean = 0;
  for (int s = 0; s < a.k; ++s) mean += w[s] * gw[s];
  if (!a.normalise) {  // a weight depends on the logits of all experts
    const float lse = log_sum_exp(logits, a.count, lane);
    for (int e = lane; e < a.count; e += kWarp) glogits[e] -= expf(logits[e] - lse) * mean;
    mean = 0;
  }
  __syncwarp();
  for (int s = lane; s < a.k; s += kWarp) glogits[experts[s]] += w[s] * (gw[s] - mean);
}

unsigned blocks_of(std::int64_t tokens) { return static_cast<unsigned>(ceil_div(tokens * kWarp, kTokenThreads)); }

const std::int32_t* counted_of(const Tensor& counted) { return counted ? counted.as<std::int32_t>() : nullptr; }

void require_f32(const char* name, const Tensor& x) {
  require(x.dtype == DType::f32, name, " on CUDA: ", name_of(x.dtype), ", not F32");
}

}  // namespace

void router_forward(Stream& stream, const RouterForward& op, float* lse) {
  require_f32("router_forward", op.logits);
  const std::int64_t tokens = op.logits.rows(), sequences = op.statistics.rows();
  const int count = static_cast<int>(op.logits.cols()), k = static_cast<int>(op.experts.cols());
  choose_kernel<<<blocks_of(tokens), kTokenThreads, 0, native_stream(stream)>>>(
      op.logits.as<float>(), op.bias ? op.bias.as<float>() : nullptr, tokens, count, k, op.normalise,
      op.experts.as<std::int32_t>(), op.weights.as<float>(), lse);
  check_launch("router_forward");
  const dim3 blocks(static_cast<unsigned>(count + 1), static_cast<unsigned>(sequences));
  statistics_kernel<<<blocks, kSumThreads, 0, native_stream(stream)>>>(op.logits.as<float>(), op.experts.as<std::int32_t>(), lse,
                                                                       tokens / sequences, count, k, op.statistics.as<float>());
  check_launch("router_forward");
}

void router_losses(Stream& stream, const RouterLosses& op) {
  require_f32("router_losses", op.statistics);
  const int count = static_cast<int>(op.statistics.cols() / 2);
  losses_kernel<<<1, kTokenThreads, 0, native_stream(stream)>>>(op.statistics.as<float>(), counted_of(op.counted),
                                                                op.statistics.rows(), count, static_cast<double>(op.seq_len),
                                                                op.total, op.loads);
  check_launch("router_losses");
}

void update_router_bias(Stream& stream, const RouterBiasUpdate& op) {
  bias_kernel<<<1, kWarp, 0, native_stream(stream)>>>(op.bias.as<float>(), op.loads, static_cast<int>(op.bias.elements()),
                                                      static_cast<float>(op.rate), op.found_inf);
  check_launch("update_router_bias");
}

void router_backward(Stream& stream, const RouterBackward& op) {
  require_f32("router_backward", op.logits);
  const int count = static_cast<int>(op.logits.cols());
  Backward a{.logits = op.logits.as<float>(),
             .weights = op.weights.as<float>(),
             .gweights = op.gweights.as<float>(),
             .statistics = nullptr,
             .experts = op.experts.as<std::int32_t>(),
             .counted = counted_of(op.counted),
             .glogits = op.glogits.as<float>(),
             .rows = op.logits.rows(),
             .tokens = 1,
             .seq_len = static_cast<float>(op.seq_len),
             .count = count,
             .k = static_cast<int>(op.experts.cols()),
             .balance = 0,
             .z = static_cast<float>(op.z),
             .normalise = op.normalise};
  if (op.statistics) {
    a.statistics = op.statistics.as<float>();
    a.tokens = op.logits.rows() / op.statistics.rows();
    a.balance = static_cast<float>(op.balance * count / static_cast<double>(op.seq_len));
  }
  backward_kernel<<<blocks_of(a.rows), kTokenThreads, 0, native_stream(stream)>>>(a);
  check_launch("router_backward");
}

}  // namespace octet::kernels::cuda
