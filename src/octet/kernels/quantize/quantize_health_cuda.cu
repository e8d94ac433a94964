#include "octet/device/cuda/cuda.h"
#include "octet/kernels/quantize/quantize_cuda.h"

namespace octet::kernels::cuda {
namespace {

using cpu::HealthSums;
using cpu::kHealthRows;

constexpr int kThreads = 256;

struct Health {
  const void* x;
  bool is_bf16;
  std::int64_t stride;
  std::int64_t rows, cols;
  Fp8Format format;
  ScaleTile tile;
  const std::uint8_t* codes;
  std::int64_t codes_stride;
  const void* scale_inv;
  std::int64_t scale_stride, scales;

  __device__ float value(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * stride + col;
    return static_cast<float>(is_bf16 ? static_cast<const BFloat16*>(x)[at] : BFloat16(static_cast<const float*>(x)[at]));
  }
  __device__ float scale_inverse(std::int64_t at) const {
    if (tile == ScaleTile::mx_1x32) return decode_e8m0(static_cast<const std::uint8_t*>(scale_inv)[at]);
    return static_cast<const float*>(scale_inv)[at];
  }
  __device__ std::int64_t scale_index(std::int64_t row, std::int64_t col) const {
    switch (tile) {
      case ScaleTile::tensor:
        return 0;
      case ScaleTile::row:
        return row;
      case ScaleTile::block_1x128:
        return col / 128 * scale_stride + row;
      case ScaleTile::block_128x128:
        return row / 128 * scale_stride + col / 128;
      case ScaleTile::mx_1x32:
        return row * scale_stride + col / 32;
    }
    return 0;
  }
};

template <class T>
struct Sum {
  __device__ void operator()(T& a, const T& b) const { a += b; }
};
template <>
struct Sum<HealthSums> {
  __device__ void operator()(HealthSums& a, const HealthSums& b) const {
    a.signal += b.signal;
    a.noise += b.noise;
    a.fourth += b.fourth;
    a.finite_nonzero += b.finite_nonzero;
    a.saturated += b.saturated;
    a.flushed += b.flushed;
    a.nonzero += b.nonzero;
  }
};

// Sums over the block in a fixed tree. Every thread gets the sum.
template <class T>
__device__ void block_sum(T& value, T (&memory)[kThreads]) {
  memory[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) Sum<T>{}(memory[threadIdx.x], memory[threadIdx.x + half]);
  }
  __syncthreads();
  value = memory[0];
}

__global__ void __launch_bounds__(kThreads) health_sums_kernel(const Health op, HealthSums* sums) {
  __shared__ HealthSums memory[kThreads];
  constexpr double kSlack = 1.0 + 0x1p-12;  // see quantize_health_cpu.cpp
  const double largest = static_cast<double>(fp8_max(op.format)) * kSlack;
  const std::int64_t first = blockIdx.x * kHealthRows;
  const std::int64_t last = min(static_cast<long long>(first + kHealthRows), static_cast<long long>(op.rows));
  HealthSums of_thread;
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t col = threadIdx.x; col < op.cols; col += kThreads) {
      const double value = op.value(row, col);
      const float scale_inv = op.scale_inverse(op.scale_index(row, col));
      const std::uint8_t code = op.codes[row * op.codes_stride + col];
      of_thread.saturated += fabs(value) > largest * static_cast<double>(scale_inv);
      of_thread.nonzero += value != 0.0;
      of_thread.flushed += value != 0.0 && (code & 0x7F) == 0;
      const double error = value - static_cast<double>(decode_fp8(op.format, code) * scale_inv);
      if (!isfinite(value) || !isfinite(error)) continue;
      of_thread.finite_nonzero += value != 0.0;
      of_thread.signal += value * value;
      of_thread.fourth += value * value * (value * value);
      of_thread.noise += error * error;
    }
  }
  block_sum(of_thread, memory);
  if (threadIdx.x == 0) sums[blockIdx.x] = of_thread;
}

__device__ float share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<float>(static_cast<double>(part) / static_cast<double>(whole)) : 0.0f;
}

// out[0] has been written before.
__global__ void __launch_bounds__(kThreads)
    health_kernel(const Health op, const HealthSums* sums, std::int64_t runs, float* out) {
  __shared__ double logarithms[kThreads];
  __shared__ std::int64_t counts[kThreads];
  double logarithm = 0;
  std::int64_t count = 0;
  for (std::int64_t i = threadIdx.x; i < op.scales; i += kThreads) {
    const double inverse = op.scale_inverse(i);
    if (!isfinite(inverse) || inverse <= 0.0) continue;
    logarithm -= log2(inverse);
    ++count;
  }
  block_sum(logarithm, logarithms);
  block_sum(count, counts);
  if (threadIdx.x != 0) return;
  HealthSums total;
  for (std::int64_t i = 0; i < runs; ++i) Sum<HealthSums>{}(total, sums[i]);
  out[1] = count == 0 ? 1.0f : static_cast<float>(exp2(logarithm / static_cast<double>(count)));
  out[2] = share(total.saturated, op.rows * op.cols);
  out[3] = share(total.flushed, total.nonzero);
  out[4] = total.noise > 0 ? static_cast<float>(10.0 * log10(total.signal / total.noise)) : __int_as_float(0x7F800000);
  const double n = static_cast<double>(total.finite_nonzero > 0 ? total.finite_nonzero : 1);
  out[5] = total.signal > 0 ? static_cast<float>(n * total.fourth / (total.signal * total.signal)) : 0.0f;
  out[6] = static_cast<float>(sqrt(total.signal / n));
}

}  // namespace

void quantize_health(Stream& stream, const QuantizeHealth& op, HealthSums* sums) {
  const Health health{.x = op.x.data,
                      .is_bf16 = op.x.dtype == DType::bf16,
                      .stride = op.x.row_stride,
                      .rows = op.x.rows(),
                      .cols = op.x.shape[1],
                      .format = op.q.format,
                      .tile = op.q.tile,
                      .codes = op.q.rowwise.as_bytes(),
                      .codes_stride = op.q.rowwise.row_stride,
                      .scale_inv = op.q.rowwise_scale_inv.data,
                      .scale_stride = op.q.rowwise_scale_inv.row_stride,
                      .scales = op.q.rowwise_scale_inv.elements()};
  const std::int64_t runs = ceil_div(health.rows, kHealthRows);
  const cudaStream_t native = octet::cuda::native_stream(stream);
  amax(stream, {.x = op.x, .amax = &op.out[0]});
  if (runs > 0) health_sums_kernel<<<static_cast<unsigned>(runs), kThreads, 0, native>>>(health, sums);
  octet::cuda::check_launch("health_sums");
  health_kernel<<<1, kThreads, 0, native>>>(health, sums, runs, op.out);
  octet::cuda::check_launch("health");
}

}  // namespace octet::kernels::cuda
