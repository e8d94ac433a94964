#include "octet/kernels/quantize/tails_cuda.cuh"
#include "octet/kernels/swiglu/swiglu_cuda.h"

namespace octet::kernels::cuda {
namespace {

// 1 / x within 1 ulp, without the branch of a correctly rounded division.
__device__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ float sigmoid(float z) { return reciprocal(1.0f + expf(-z)); }
__device__ float forward(float gate, float up) { return gate * sigmoid(gate) * up; }

struct Gradients {
  float gate, up;
};
__device__ Gradients backward(float gate, float up, float gy) {
  const float s = sigmoid(gate);
  return {gy * up * (s * (1.0f + gate * (1.0f - s))), gy * (gate * s)};
}

struct SwigluForwardSource : Extent {
  static constexpr int kParts = 1, kAhead = 4, kBlocks = 3, kAcross = 1;
  struct Column {};
  struct Raw {
    Chunk gate, up;
  };
  const std::uint16_t* gate_up;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const std::uint16_t* const gate = gate_up + row * stride + col;
    return {load_chunk(gate), load_chunk(gate + cols)};
  }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[1]) const {
    float gate[kChunk], up[kChunk];
    unpack(raw.gate, gate);
    unpack(raw.up, up);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) gate[i] = forward(gate[i], up[i]);
    made[0] = pack(gate);
  }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const {
    const std::uint16_t* const gate = gate_up + row * stride + col;
    made[0] = to_bf16(forward(value_of(gate[0]), value_of(gate[cols])));
  }
};

// Computes the gradients of gate and up together.
struct SwigluBackwardSource : Extent {
  static constexpr int kParts = 2, kAhead = 8, kBlocks = 2, kAcross = 1;
  struct Column {};
  struct Raw {
    Chunk gate, up, gy;
  };
  const std::uint16_t* gate_up;
  std::int64_t stride;
  const std::uint16_t* gy;
  std::int64_t gy_stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const std::uint16_t* const gate = gate_up + row * stride + col;
    return {load_chunk(gate), load_chunk(gate + cols), load_chunk(gy + row * gy_stride + col)};
  }
  __device__ void make(const Raw& raw, Column, Chunk (&made)[2]) const {
    float gate[kChunk], up[kChunk], g[kChunk];
    unpack(raw.gate, gate);
    unpack(raw.up, up);
    unpack(raw.gy, g);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const Gradients gradients = backward(gate[i], up[i], g[i]);
      gate[i] = gradients.gate;
      up[i] = gradients.up;
    }
    made[0] = pack(gate);
    made[1] = pack(up);
  }
  __device__ void element(int row, int col, std::uint16_t (&made)[2]) const {
    const std::uint16_t* const gate = gate_up + row * stride + col;
    const Gradients gradients = backward(value_of(gate[0]), value_of(gate[cols]), value_of(gy[row * gy_stride + col]));
    made[0] = to_bf16(gradients.gate);
    made[1] = to_bf16(gradients.up);
  }
};

Extent extent_of(const Tensor& gate_up) {
  const std::int64_t cols = gate_up.cols() / 2;
  return {
      .rows = static_cast<int>(gate_up.rows()), .cols = static_cast<int>(cols), .wide = is_wide(gate_up) && cols % kChunk == 0};
}

void require_bf16(const Tensor& tensor) {
  require(tensor.dtype == DType::bf16, "swiglu: activations on CUDA are BF16, got ", name_of(tensor.dtype));
}

}  // namespace

void swiglu_forward(Stream& stream, const SwigluForward& op, float* amaxes) {
  require_bf16(op.gate_up);
  const SwigluForwardSource source{extent_of(op.gate_up), bf16_bits(op.gate_up), op.gate_up.row_stride};
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesTail(op.y, source.cols));
}

void swiglu_backward(Stream& stream, const SwigluBackward& op, float* amaxes) {
  require_bf16(op.gate_up);
  SwigluBackwardSource source{extent_of(op.gate_up), bf16_bits(op.gate_up), op.gate_up.row_stride, bf16_bits(op.gy),
                              op.gy.row_stride};
  source.wide = source.wide && is_wide(op.gy);
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesTail(op.ggate_up, source.cols));
}

}  // namespace octet::kernels::cuda
