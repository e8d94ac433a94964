#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"
#include "octet/kernels/quantize/values_epilogue_cuda.cuh"
#include "octet/kernels/swiglu/swiglu_cuda.h"

namespace octet::kernels::cuda {
namespace {

// 1 / (1 + exp(-z)). The reciprocal is within 1 ulp. It flushes subnormal numbers to zero, which saves five instructions; a factor of
// 4 keeps its result above them, and changes no bit.
__device__ float sigmoid(float z) {
  float quadruple;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quadruple) : "f"(fmaf(expf(-z), 0.25f, 0.25f)));
  return 0.25f * quadruple;
}
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
    Bf16Vector gate, up;
  };
  const BFloat16* gate_up;
  std::int64_t stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const BFloat16* const gate = gate_up + row * stride + col;
    return {load_vector(gate), load_vector(gate + cols)};
  }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[1]) const {
    float gate[kVector], up[kVector];
    unpack(raw.gate, gate);
    unpack(raw.up, up);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gate[i] = forward(gate[i], up[i]);
    made[0] = pack(gate);
  }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    const BFloat16* const gate = gate_up + row * stride + col;
    made[0] = to_bf16(forward(static_cast<float>(gate[0]), static_cast<float>(gate[cols])));
  }
};

// Computes the gradients of gate and up together.
struct SwigluBackwardSource : Extent {
  static constexpr int kParts = 2, kAhead = 8, kBlocks = 2, kAcross = 1;
  struct Column {};
  struct Raw {
    Bf16Vector gate, up, gy;
  };
  const BFloat16* gate_up;
  std::int64_t stride;
  const BFloat16* gy;
  std::int64_t gy_stride;

  __device__ Column column(int) const { return {}; }
  __device__ Raw fetch(int row, int col, Column) const {
    const BFloat16* const gate = gate_up + row * stride + col;
    return {load_vector(gate), load_vector(gate + cols), load_vector(gy + row * gy_stride + col)};
  }
  __device__ void make(const Raw& raw, Column, Bf16Vector (&made)[2]) const {
    float gate[kVector], up[kVector], g[kVector];
    unpack(raw.gate, gate);
    unpack(raw.up, up);
    unpack(raw.gy, g);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Gradients gradients = backward(gate[i], up[i], g[i]);
      gate[i] = gradients.gate;
      up[i] = gradients.up;
    }
    made[0] = pack(gate);
    made[1] = pack(up);
  }
  __device__ void element(int row, int col, BFloat16 (&made)[2]) const {
    const BFloat16* const gate = gate_up + row * stride + col;
    const Gradients gradients =
        backward(static_cast<float>(gate[0]), static_cast<float>(gate[cols]), static_cast<float>(gy[row * gy_stride + col]));
    made[0] = to_bf16(gradients.gate);
    made[1] = to_bf16(gradients.up);
  }
};

Extent extent_of(const Tensor& gate_up, const RowGroups& groups) {
  const std::int64_t cols = gate_up.cols() / 2;
  return {.rows = static_cast<int>(gate_up.rows()),
          .cols = static_cast<int>(cols),
          .wide = rows_are_aligned(gate_up) && cols % kVector == 0,
          .groups = groups_of(groups)};
}

void require_bf16(const Tensor& tensor) {
  require(tensor.dtype == DType::bf16, "swiglu: activations on CUDA are BF16, got ", name_of(tensor.dtype));
}

}  // namespace

void swiglu_forward(Stream& stream, const SwigluForward& op, float* amaxes) {
  require_bf16(op.gate_up);
  const SwigluForwardSource source{extent_of(op.gate_up, op.codes.groups), op.gate_up.as<BFloat16>(), op.gate_up.row_stride};
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesEpilogue(op.y, source.cols));
}

void swiglu_backward(Stream& stream, const SwigluBackward& op, float* amaxes) {
  require_bf16(op.gate_up);
  SwigluBackwardSource source{extent_of(op.gate_up, op.codes.groups), op.gate_up.as<BFloat16>(), op.gate_up.row_stride, op.gy.as<BFloat16>(),
                              op.gy.row_stride};
  source.wide = source.wide && rows_are_aligned(op.gy);
  if (op.codes) return write_codes(stream, source, source, op.codes, amaxes);
  launch_tiles(stream, source, ValuesEpilogue(op.ggate_up, source.cols));
}

}  // namespace octet::kernels::cuda
