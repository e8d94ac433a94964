#include "octet/kernels/gelu/gelu_cuda.h"
#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"
#include "octet/kernels/quantize/values_epilogue_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

// As in gelu_cpu.cpp: y = x p, dy/dx = p + x dp/dx.
constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
constexpr float kPeak = 0.3989422804f;  // 1 / sqrt(2 pi)

__device__ float within(float z) { return z < -100.0f ? -100.0f : z > 100.0f ? 100.0f : z; }
__device__ float tanh_share(float z) { return 1.0f / (1.0f + expf(-kTwice * (z + kCubic * z * z * z))); }

__device__ float forward(Gelu kind, float x) {
  switch (kind) {
    case Gelu::exact:
      return x * normcdff(x);
    case Gelu::tanh:
      return x * tanh_share(within(x));
  }
  return nanf("");
}
__device__ float backward(Gelu kind, float x, float gy) {
  switch (kind) {
    case Gelu::exact:
      return gy * (normcdff(x) + x * (kPeak * expf(-0.5f * x * x)));
    case Gelu::tanh: {
      const float z = within(x), p = tanh_share(z);
      return gy * (p + x * (p * (1.0f - p) * (kTwice * (1.0f + 3.0f * kCubic * z * z))));
    }
  }
  return nanf("");
}

struct GeluForwardSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {};
  using Raw = Bf16Vector;
  Gelu kind;
  const BFloat16* x;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const { return load_vector(x + row * stride + col); }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const {
    float values[kVector];
    unpack(raw, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = forward(kind, values[i]);
    made[0] = pack(values);
  }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    made[0] = to_bf16(forward(kind, static_cast<float>(x[row * stride + col])));
  }
};

struct GeluBackwardSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {};
  struct Raw {
    Bf16Vector x, gy;
  };
  Gelu kind;
  const BFloat16* x;
  std::int64_t stride;
  const BFloat16* gy;
  std::int64_t gy_stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    return {load_vector(x + row * stride + col), load_vector(gy + row * gy_stride + col)};
  }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const {
    float values[kVector], g[kVector];
    unpack(raw.x, values);
    unpack(raw.gy, g);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = backward(kind, values[i], g[i]);
    made[0] = pack(values);
  }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    made[0] = to_bf16(backward(kind, static_cast<float>(x[row * stride + col]), static_cast<float>(gy[row * gy_stride + col])));
  }
};

Extent extent_of(const Tensor& x) {
  require(x.dtype == DType::bf16, "gelu: activations on CUDA are BF16, got ", name_of(x.dtype));
  return {.rows = static_cast<int>(x.rows()),
          .cols = static_cast<int>(x.cols()),
          .wide = rows_are_aligned(x) && x.cols() % kVector == 0};
}

}  // namespace

void gelu_forward(Stream& stream, const GeluForward& op, float* amaxes) {
  const GeluForwardSource source{extent_of(op.x), op.kind, op.x.as<BFloat16>(), op.x.row_stride};
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesEpilogue(op.y, source.cols));
}

void gelu_backward(Stream& stream, const GeluBackward& op, float* amaxes) {
  GeluBackwardSource source{extent_of(op.x),      op.kind,         op.x.as<BFloat16>(), op.x.row_stride,
                            op.gy.as<BFloat16>(), op.gy.row_stride};
  source.wide = source.wide && rows_are_aligned(op.gy);
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesEpilogue(op.gx, source.cols));
}

}  // namespace octet::kernels::cuda
