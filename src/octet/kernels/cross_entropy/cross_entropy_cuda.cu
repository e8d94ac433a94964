#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"
#include "octet/kernels/copy_async_cuda.cuh"
#include "octet/kernels/cross_entropy/cross_entropy_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check;
using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kThreads = 512;
constexpr int kBlocks = 3;  // per multiprocessor: some blocks read their row while others write theirs
constexpr int kBatch = 4;   // number of 16-byte loads of a thread that are in flight
constexpr int kBatchVectors = kBatch * kThreads;
// If the gradient is written, a cluster of blocks keeps the row in shared memory between the two passes.
constexpr int kCacheVectors = 2 * kBatchVectors;
constexpr int kMostBlocksPerRow = 8;
constexpr int kSumThreads = 1024;

// The statistics of some logits: `top`, the largest, ignores NaN; the sum of e^(x - top) is NaN if a logit is.
struct Softmax {
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
};

// The value that is subtracted before exp. If all logits are -inf, or
// there are none, it is 0, so that they contribute 0 instead of NaN.
__device__ float shift_of(float top) { return top == -std::numeric_limits<float>::infinity() ? 0.0f : top; }

constexpr float kLog2E = 0x1.715476p+0f;

// Gives 0 for results below FP32's normal range. This avoids the scaling that __expf and exp2f do.
__device__ float exp2_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ float exp_of(float x) { return exp2_of(x * kLog2E); }

__device__ __nv_bfloat162 max_of(const Bf16Vector& x) {
  const auto pair = [](const std::uint32_t& word) { return reinterpret_cast<const __nv_bfloat162&>(word); };
  const uint4& p = x.parts[0];
  return __hmax2(__hmax2(pair(p.x), pair(p.y)), __hmax2(pair(p.z), pair(p.w)));
}

template <int N>
__device__ void add(Softmax& s, const Bf16Vector (&vectors)[N]) {
  __nv_bfloat162 largest = max_of(vectors[0]);
  for (int i = 1; i < N; ++i) largest = __hmax2(largest, max_of(vectors[i]));
  const float top = fmaxf(s.top, fmaxf(__low2float(largest), __high2float(largest))), shift = shift_of(top);
  float sum = s.sum * exp_of(s.top - shift);
  for (const Bf16Vector& vector : vectors) {
    float x[kVector], part = 0;
    unpack(vector, x);
    for (const float value : x) part += exp_of(value - shift);
    sum += part;
  }
  s = {top, sum};
}

__device__ Softmax merge(const Softmax& a, const Softmax& b) {
  const float top = fmaxf(a.top, b.top), shift = shift_of(top);
  return {top, a.sum * exp_of(a.top - shift) + b.sum * exp_of(b.top - shift)};
}

// The statistics of the whole block, for every thread, merged in a fixed tree.
__device__ Softmax block_merge(Softmax s) {
  __shared__ float tops[32], sums[32];
  const auto over_warp = [](Softmax t) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      t = merge(t, {__shfl_xor_sync(~0u, t.top, lanes), __shfl_xor_sync(~0u, t.sum, lanes)});
    }
    return t;
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  s = over_warp(s);
  if (lane == 0) {
    tops[warp] = s.top;
    sums[warp] = s.sum;
  }
  __syncthreads();
  return over_warp(lane < static_cast<int>(blockDim.x) / 32 ? Softmax{tops[lane], sums[lane]} : Softmax{});
}

// The statistics of all blocks of a row, for every thread, merged in the order of the blocks.
__device__ Softmax row_merge(const Softmax& of_block) {
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned blocks = cluster.num_blocks();
  if (blocks == 1) return of_block;
  __shared__ Softmax mine;
  if (threadIdx.x == 0) mine = of_block;
  cluster.sync();
  Softmax s;
  for (unsigned block = 0; block < blocks; ++block) s = merge(s, *cluster.map_shared_rank(&mine, block));
  cluster.sync();  // `mine` must stay valid until all blocks have read it
  return s;
}

// A row: single logits before and after aligned vectors. This block processes `count` vectors from `share` on. The first block
// also processes the single logits.
struct Row {
  BFloat16 *logits, *share;
  int size, head, vectors, block, count;

  __device__ Row(BFloat16* first, int columns, int blocks) : logits(first), size(columns) {
    const int before = static_cast<int>((16 - reinterpret_cast<std::uintptr_t>(first) % 16) % 16 / sizeof(BFloat16));
    head = min(before, size);
    vectors = (size - head) / kVector;
    block = static_cast<int>(blockIdx.x) % blocks;
    const int most = (vectors + blocks - 1) / blocks, begin = min(block * most, vectors);
    share = logits + head + begin * kVector;
    count = min(most, vectors - begin);
  }
  __device__ BFloat16* vector(int i) const { return share + i * kVector; }
  // The single logit of this thread, or null.
  __device__ BFloat16* single() const {
    const int i = static_cast<int>(threadIdx.x);
    const int index = i < head ? i : i + vectors * kVector;
    return block == 0 && index < size ? logits + index : nullptr;
  }
  __device__ bool has(int index) const {
    const BFloat16* at = logits + index;
    const bool in_vectors = head <= index && index < head + vectors * kVector;
    return in_vectors ? share <= at && at < share + count * kVector : block == 0;
  }
};

template <bool kWrites>
__device__ void ignore_row(const Row& row, float* loss) {
  if (row.block == 0 && threadIdx.x == 0) *loss = 0;
  if constexpr (kWrites) {
    for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kThreads) store_vector_unsplit(row.vector(i), Bf16Vector{});
    if (BFloat16* single = row.single()) *single = BFloat16(0.0f);
  }
}

__device__ Bf16Vector lowest() {
  constexpr std::uint32_t kLowest = 0xFF80FF80u;  // pairs of -inf, which contribute 0
  return {{{kLowest, kLowest, kLowest, kLowest}}};
}

// Adds this thread's vectors of the row from `first` on, and its single logit.
__device__ void add_rest(Softmax& s, const Row& row, int first) {
  for (; first < row.count; first += kBatchVectors) {
    Bf16Vector batch[kBatch];
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * kThreads;
      batch[b] = i < row.count ? load_vector(row.vector(i)) : lowest();
    }
    add(s, batch);
  }
  if (const BFloat16* single = row.single()) {
    const float x = static_cast<float>(*single);
    s = merge(s, isnan(x) ? Softmax{.sum = x} : Softmax{x, 1.0f});
  }
}

// A cluster of blocks processes a token. The first kCacheVectors of a
// block's share stay in shared memory; the others are read twice.
template <bool kWrites>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cross_entropy_kernel(BFloat16* logits, std::int64_t row_stride, int vocabulary, const std::int32_t* targets, float* losses,
                         int blocks) {
  extern __shared__ Bf16Vector cache[];
  const std::int64_t token = blockIdx.x / static_cast<unsigned>(blocks);
  const Row row(logits + token * row_stride, vocabulary, blocks);
  const std::int32_t target = targets[token];
  if (target == kIgnoredTarget) return ignore_row<kWrites>(row, losses + token);
  // For a target outside the vocabulary, the loss becomes NaN, so that the step is skipped.
  const bool known = 0 <= target && target < vocabulary;
  const float chosen = known ? static_cast<float>(row.logits[target]) : std::numeric_limits<float>::quiet_NaN();

  Softmax s;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kWrites) {
    // All loads into shared memory are issued at once.
    for (int first = thread; first < kCacheVectors; first += kBatchVectors) {
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kThreads;
        if (i < row.count) copy_async(cache + i, row.vector(i));
      }
      end_copies();
    }
    for (int first = thread; first < min(row.count, kCacheVectors); first += kBatchVectors) {
      if (first < kBatchVectors) {
        wait_for_copies<kCacheVectors / kBatchVectors - 1>();
      } else {
        wait_for_copies<0>();
      }
      Bf16Vector batch[kBatch];
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kThreads;
        batch[b] = i < row.count ? cache[i] : lowest();
      }
      add(s, batch);
    }
  }
  add_rest(s, row, kWrites ? thread + kCacheVectors : thread);
  s = row_merge(block_merge(s));
  if (row.block == 0 && thread == 0) losses[token] = logf(s.sum) - (chosen - s.top);

  if constexpr (kWrites) {
    const auto probability = [top = s.top, scale = -log2f(s.sum)](float x) { return exp2_of(fmaf(x - top, kLog2E, scale)); };
    for (int first = thread; first < row.count; first += kBatchVectors) {
      Bf16Vector batch[kBatch];
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kThreads;
        if (first < kCacheVectors) {
          batch[b] = cache[i];
        } else if (i < row.count) {
          batch[b] = load_vector(row.vector(i));
        }
      }
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kThreads;
        float x[kVector];
        unpack(batch[b], x);
        for (float& value : x) value = probability(value);
        if (i < row.count) store_packed(row.vector(i), x);
      }
    }
    if (BFloat16* single = row.single()) *single = to_bf16(probability(static_cast<float>(*single)));
    __syncthreads();
    if (thread == 0 && known && row.has(target)) row.logits[target] = to_bf16(probability(chosen) - 1.0f);
  }
}

// A block processes a token of a vocabulary shard.
__global__ void __launch_bounds__(kThreads)
    softmax_statistics_kernel(BFloat16* logits, std::int64_t row_stride, int columns, const std::int32_t* targets,
                              std::int64_t first, float* statistics) {
  const std::int64_t token = blockIdx.x, tokens = gridDim.x;
  const std::int32_t target = targets[token];
  Softmax s{0, 0};
  float chosen = 0;
  if (target != kIgnoredTarget) {
    const Row row(logits + token * row_stride, columns, 1);
    s = {};
    add_rest(s, row, static_cast<int>(threadIdx.x));
    s = block_merge(s);
    const std::int64_t here = target - first;
    if (0 <= here && here < columns) chosen = static_cast<float>(row.logits[here]);
  }
  if (threadIdx.x > 0) return;
  statistics[token] = s.top;
  statistics[tokens + token] = s.sum;
  statistics[2 * tokens + token] = chosen;
}

template <bool kWrites>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_of_part_kernel(BFloat16* logits, std::int64_t row_stride, int columns, const std::int32_t* targets,
                                 std::int64_t first, std::int64_t vocabulary, const float* statistics, int parts, float* losses) {
  const std::int64_t token = blockIdx.x, tokens = gridDim.x;
  const Row row(logits + token * row_stride, columns, 1);
  const std::int32_t target = targets[token];
  if (target == kIgnoredTarget) return ignore_row<kWrites>(row, losses + token);
  Softmax s;
  float chosen = 0 <= target && target < vocabulary ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  for (int part = 0; part < parts; ++part) {
    const float* of_part = statistics + 3 * part * tokens + token;
    s = merge(s, {of_part[0], of_part[tokens]});
    chosen += of_part[2 * tokens];
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) losses[token] = logf(s.sum) - (chosen - s.top);
  if constexpr (kWrites) {
    const auto probability = [top = s.top, scale = -log2f(s.sum)](float x) { return exp2_of(fmaf(x - top, kLog2E, scale)); };
    for (int i = thread; i < row.count; i += kThreads) {
      float x[kVector];
      unpack(load_vector(row.vector(i)), x);
      for (float& value : x) value = probability(value);
      store_packed(row.vector(i), x);
    }
    if (BFloat16* single = row.single()) *single = to_bf16(probability(static_cast<float>(*single)));
    __syncthreads();
    const std::int64_t here = target - first;
    if (thread == 0 && 0 <= here && here < columns) row.logits[here] = to_bf16(probability(chosen) - 1.0f);
  }
}

__global__ void __launch_bounds__(kSumThreads)
    loss_sum_kernel(const float* loss, const std::int32_t* targets, std::int64_t count, double* total) {
  double sum = 0, tokens = 0;
  for (std::int64_t t = threadIdx.x; t < count; t += kSumThreads) {
    sum += static_cast<double>(loss[t]);
    tokens += targets[t] != kIgnoredTarget;
  }
  sum = block_sum(sum);
  tokens = block_sum(tokens);
  if (threadIdx.x == 0) {
    total[0] += sum;
    total[1] += tokens;
  }
}

template <bool kWrites>
void launch(cudaStream_t native, const CrossEntropy& op) {
  const std::int64_t vocabulary = op.logits.cols(), vectors = vocabulary / kVector;
  int blocks = 1;  // per row
  while (kWrites && blocks < kMostBlocksPerRow && vectors > std::int64_t{blocks} * kCacheVectors) blocks *= 2;
  const std::int64_t share = round_up(ceil_div(vectors, std::int64_t{blocks}), std::int64_t{kBatchVectors});
  const std::size_t cache = kWrites ? std::min(share, std::int64_t{kCacheVectors}) * sizeof(Bf16Vector) : 0;
  const auto kernel = cross_entropy_kernel<kWrites>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(cache)),
        "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(op.logits.rows() * blocks),
                            .blockDim = kThreads,
                            .dynamicSmemBytes = cache,
                            .stream = native,
                            .attrs = &cluster,
                            .numAttrs = 1};
  check(cudaLaunchKernelEx(&config, kernel, op.logits.as<BFloat16>(), op.logits.row_stride, static_cast<int>(vocabulary),
                           op.targets.as<std::int32_t>(), op.loss.as<float>(), blocks),
        "cross_entropy");
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& op) {
  require(op.logits.dtype == DType::bf16, "cross_entropy on CUDA: logits are ", name_of(op.logits.dtype), ", not BF16");
  if (op.logits.rows() == 0) return;
  if (op.gradient == CrossEntropy::Gradient::in_place) {
    launch<true>(native_stream(stream), op);
  } else {
    launch<false>(native_stream(stream), op);
  }
}

void softmax_statistics(Stream& stream, const SoftmaxStatistics& op) {
  require(op.logits.dtype == DType::bf16, "softmax_statistics on CUDA: logits are ", name_of(op.logits.dtype), ", not BF16");
  if (op.logits.rows() == 0) return;
  softmax_statistics_kernel<<<static_cast<unsigned>(op.logits.rows()), kThreads, 0, native_stream(stream)>>>(
      op.logits.as<BFloat16>(), op.logits.row_stride, static_cast<int>(op.logits.cols()), op.targets.as<std::int32_t>(), op.first,
      op.statistics.as<float>());
  check_launch("softmax_statistics");
}

void cross_entropy_of_part(Stream& stream, const CrossEntropyOfPart& op) {
  require(op.logits.dtype == DType::bf16, "cross_entropy_of_part on CUDA: logits are ", name_of(op.logits.dtype), ", not BF16");
  if (op.logits.rows() == 0) return;
  const auto kernel =
      op.gradient == CrossEntropy::Gradient::in_place ? cross_entropy_of_part_kernel<true> : cross_entropy_of_part_kernel<false>;
  kernel<<<static_cast<unsigned>(op.logits.rows()), kThreads, 0, native_stream(stream)>>>(
      op.logits.as<BFloat16>(), op.logits.row_stride, static_cast<int>(op.logits.cols()), op.targets.as<std::int32_t>(), op.first,
      op.vocabulary, op.statistics.as<float>(), static_cast<int>(op.statistics.rows() / 3), op.loss.as<float>());
  check_launch("cross_entropy_of_part");
}

void loss_sum(Stream& stream, const LossSum& op) {
  require(op.loss.dtype == DType::f32, "loss_sum on CUDA: losses are ", name_of(op.loss.dtype), ", not F32");
  loss_sum_kernel<<<1, kSumThreads, 0, native_stream(stream)>>>(op.loss.as<float>(), op.targets.as<std::int32_t>(),
                                                                op.loss.rows(), op.total);
  check_launch("loss_sum");
}

}  // namespace octet::kernels::cuda
