#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/layernorm/layernorm_cuda.h"
#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"
#include "octet/kernels/rows_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

__device__ float normalise(float x, float mean, float rstd, float weight, float bias) {
  return fmaf((x - mean) * rstd, weight, bias);
}

__device__ Bf16Vector normalise(const Bf16Vector& x, float mean, float rstd, const Bf16Vector& weight, const Bf16Vector& bias) {
  float values[kVector], factors[kVector], shifts[kVector];
  unpack(x, values);
  unpack(weight, factors);
  unpack(bias, shifts);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = normalise(values[i], mean, rstd, factors[i], shifts[i]);
  return pack(values);
}

__device__ int col_of(int i) { return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) * kVector; }

struct Statistics {
  float *mean, *rstd;
};

// One block per row; thread t has vectors t, t + blockDim.x, ... y is written if it is present.
template <int kVectors>
__global__ void __launch_bounds__(most_threads(kVectors))
    forward_kernel(const Rows x, const Rows weight, const Rows bias, const Rows y, float epsilon, const Statistics statistics) {
  // The last rows are processed last. A fused kernel then starts with them while they are in the cache.
  const int row = static_cast<int>(blockIdx.x);
  const float count = static_cast<float>(x.cols);
  Bf16Vector vectors[kVectors];
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) vectors[i] = x.load(row, col_of(i));
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector];
    unpack(vectors[i], values);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum += values[k];
  }
  const float mean = block_total(sum) / count;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector];
    unpack(vectors[i], values);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float centred = col_of(i) + k < x.cols ? values[k] - mean : 0.0f;
      squares = fmaf(centred, centred, squares);
    }
  }
  __syncthreads();
  const float rstd = 1.0f / sqrtf(block_total(squares) / count + epsilon);
  if (threadIdx.x == 0) {
    statistics.mean[row] = mean;
    statistics.rstd[row] = rstd;
  }
  if (!y.at) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int col = col_of(i);
    y.store(row, col, normalise(vectors[i], mean, rstd, weight.load(0, col), bias.load(0, col)));
  }
}

// Both sums over the block in a fixed order, for every thread. Consecutive calls must alternate `turn`.
__device__ float2 block_totals(float2 value, int turn) {
  __shared__ float2 shares[2][most_threads(kMostVectors) / 32];
  const auto add_lanes = [](float2 sum) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, distance);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, distance);
    }
    return sum;
  };
  float2* const warps = shares[turn];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  value = add_lanes(value);
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  return add_lanes(lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : float2{0.0f, 0.0f});
}

// Each block processes `rows_per_block` rows. Its partial sums of gweight and gbias go to row blockIdx.x.
struct Backward {
  Rows gy, x, weight, gx;
  const float *means, *rstds;
  int rows, rows_per_block;
  float *weight_partials, *bias_partials;
};

template <int kVectors>
__global__ void __launch_bounds__(most_threads(kVectors)) backward_kernel(const Backward op) {
  const int begin = static_cast<int>(blockIdx.x) * op.rows_per_block, end = min(op.rows, begin + op.rows_per_block);
  Bf16Vector weights[kVectors];
  float of_weight[kVectors][kVector] = {}, of_bias[kVectors][kVector] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) weights[i] = op.weight.load(0, col_of(i));
#pragma unroll 1
  for (int row = begin; row < end; ++row) {
    const float mean = op.means[row], rstd = op.rstds[row];
    Bf16Vector gys[kVectors], xs[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      gys[i] = op.gy.load(row, col_of(i));
      xs[i] = op.x.load(row, col_of(i));
    }
    float2 sums = {0.0f, 0.0f};  // of gy * weight and of gy * weight * n; after the end of the row, gy is 0
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float g[kVector], v[kVector], w[kVector];
      unpack(gys[i], g);
      unpack(xs[i], v);
      unpack(weights[i], w);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        sums.x = fmaf(g[k], w[k], sums.x);
        sums.y = fmaf(g[k] * w[k], (v[k] - mean) * rstd, sums.y);
      }
    }
    const float2 totals = block_totals(sums, row % 2);
    const float mean_g = totals.x / static_cast<float>(op.x.cols), mean_dot = totals.y / static_cast<float>(op.x.cols);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float g[kVector], v[kVector], w[kVector], before[kVector];
      unpack(gys[i], g);
      unpack(xs[i], v);
      unpack(weights[i], w);
      unpack(op.gx.load(row, col_of(i)), before);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const float n = (v[k] - mean) * rstd;
        before[k] += rstd * (g[k] * w[k] - mean_g - n * mean_dot);
        of_weight[i][k] = fmaf(g[k], n, of_weight[i][k]);
        of_bias[i][k] += g[k];
      }
      op.gx.store(row, col_of(i), pack(before));
    }
  }
  const std::int64_t partial = std::int64_t{blockIdx.x} * op.x.cols;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (col_of(i) + k >= op.x.cols) continue;
      op.weight_partials[partial + col_of(i) + k] = of_weight[i][k];
      op.bias_partials[partial + col_of(i) + k] = of_bias[i][k];
    }
  }
}

// Computes y with the stored statistics.
struct LayerNormSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {
    Bf16Vector weight, bias;
  };
  struct Raw {
    Bf16Vector x;
    float mean, rstd;
    bool there;  // false after the last row, where the bias must not be added
  };
  Bf16Source x, weight, bias;
  const float *mean, *rstd;

  __device__ Column column(int col) const { return {weight.fetch(0, col, {}), bias.fetch(0, col, {})}; }
  __device__ Raw fetch(int row, int col, const Column&) const { return {x.fetch(row, col, {}), mean[row], rstd[row], true}; }
  __device__ void make(const Raw& raw, const Column& column, Bf16Vector (&made)[1]) const {
    made[0] = raw.there ? normalise(raw.x, raw.mean, raw.rstd, column.weight, column.bias) : Bf16Vector{};
  }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    made[0] = to_bf16(normalise(static_cast<float>(x.x[row * x.stride + col]), mean[row], rstd[row],
                                static_cast<float>(weight.x[col]), static_cast<float>(bias.x[col])));
  }
};

}  // namespace

void layernorm_forward(Stream& stream, const LayerNormForward& op, float* amaxes) {
  const Tensor y = op.codes ? Tensor{} : op.y, weight = as_row(op.weight), bias = as_row(op.bias);
  const Extent extent = extent_of("layernorm", op.x, weight, bias, y);
  if (extent.rows == 0) return;
  with_vectors("layernorm", extent.cols, [&]<int kVectors>(unsigned threads) {
    forward_kernel<kVectors><<<static_cast<unsigned>(extent.rows), threads, 0, octet::cuda::native_stream(stream)>>>(
        rows_of(op.x, extent.wide), rows_of(weight, extent.wide), rows_of(bias, extent.wide), rows_of(y, extent.wide),
        static_cast<float>(op.epsilon), {op.mean.as<float>(), op.rstd.as<float>()});
  });
  octet::cuda::check_launch("layernorm_forward");
  if (!op.codes) return;
  const LayerNormSource source{extent,           Bf16Source(op.x),    Bf16Source(weight),
                               Bf16Source(bias), op.mean.as<float>(), op.rstd.as<float>()};
  write_codes(stream, source, source, op.codes, amaxes);
}

void layernorm_backward(Stream& stream, const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials,
                        float* amaxes) {
  const Tensor weight = as_row(op.weight);
  const Extent extent = extent_of("layernorm", op.x, op.gy, op.gx, weight);
  if (extent.rows == 0) return;
  const Backward kernel{.gy = rows_of(op.gy, extent.wide),
                        .x = rows_of(op.x, extent.wide),
                        .weight = rows_of(weight, extent.wide),
                        .gx = rows_of(op.gx, extent.wide),
                        .means = op.mean.as<float>(),
                        .rstds = op.rstd.as<float>(),
                        .rows = extent.rows,
                        .rows_per_block = static_cast<int>(rows_per_partial(extent.rows)),
                        .weight_partials = weight_partials.as<float>(),
                        .bias_partials = bias_partials.as<float>()};
  with_vectors("layernorm", extent.cols, [&]<int kVectors>(unsigned threads) {
    backward_kernel<kVectors>
        <<<static_cast<unsigned>(weight_partials.rows()), threads, 0, octet::cuda::native_stream(stream)>>>(kernel);
  });
  octet::cuda::check_launch("layernorm_backward");
  add_partials(stream, weight_partials, op.gweight);
  add_partials(stream, bias_partials, op.gbias);
  const Bf16Source gx(op.gx);
  if (op.codes) write_codes(stream, gx, gx, op.codes, amaxes);
}

}  // namespace octet::kernels::cuda
