#include "octet/kernels/gelu/gelu_cuda.h"
#include "octet/kernels/quantize/tails_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

// As in gelu_cpu.cpp: y = x p, dy/dx = p + x dp/dx.
constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
constexpr float kPeak = 0.3989422804f;  // 1 / sqrt(2 pi)

__device__ float within(float z) { return z < -100.0f ? -100.0f : z > 100.0f ? 100.0f : z; }
__device__ float tanh_share(float z) { return 1.0f / (1.0f + expf(-kTwice * (z + kCubic * z * z * z))); }

__device__ float forward(Gelu kind, float x) { return x * (kind == Gelu::exact ? normcdff(x) : tanh_share(within(x))); }
__device__ float backward(Gelu kind, float x, float gy) {
  if (kind == Gelu::exact) return gy * (normcdff(x) + x * (kPeak * expf(-0.5f * x * x)));
  const float z = within(x), p = tanh_share(z);
  return gy * (p + x * (p * (1.0f - p) * (kTwice * (1.0f + 3.0f * kCubic * z * z))));
}

struct GeluForwardSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {};
  using Raw = Chunk;
  Gelu kind;
  const std::uint16_t* x;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const { return load_chunk(x + row * stride + col); }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[1]) const {
    float values[kChunk];
    unpack(raw, values);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = forward(kind, values[i]);
    made[0] = pack(values);
  }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const {
    made[0] = to_bf16(forward(kind, value_of(x[row * stride + col])));
  }
};

struct GeluBackwardSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {};
  struct Raw {
    Chunk x, gy;
  };
  Gelu kind;
  const std::uint16_t* x;
  std::int64_t stride;
  const std::uint16_t* gy;
  std::int64_t gy_stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    return {load_chunk(x + row * stride + col), load_chunk(gy + row * gy_stride + col)};
  }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[1]) const {
    float values[kChunk], g[kChunk];
    unpack(raw.x, values);
    unpack(raw.gy, g);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = backward(kind, values[i], g[i]);
    made[0] = pack(values);
  }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const {
    made[0] = to_bf16(backward(kind, value_of(x[row * stride + col]), value_of(gy[row * gy_stride + col])));
  }
};

Extent extent_of(const Tensor& x) {
  require(x.dtype == DType::bf16, "gelu: activations on CUDA are BF16, got ", name_of(x.dtype));
  return {.rows = static_cast<int>(x.rows()), .cols = static_cast<int>(x.cols()), .wide = is_wide(x) && x.cols() % kChunk == 0};
}

}  // namespace

void gelu_forward(Stream& stream, const GeluForward& op, float* amaxes) {
  const GeluForwardSource source{extent_of(op.x), op.kind, bf16_bits(op.x), op.x.row_stride};
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesTail(op.y, source.cols));
}

void gelu_backward(Stream& stream, const GeluBackward& op, float* amaxes) {
  GeluBackwardSource source{extent_of(op.x), op.kind, bf16_bits(op.x), op.x.row_stride, bf16_bits(op.gy), op.gy.row_stride};
  source.wide = source.wide && is_wide(op.gy);
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesTail(op.gx, source.cols));
}

}  // namespace octet::kernels::cuda
