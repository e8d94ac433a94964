#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/attention/attention_fp8_cuda.h"

namespace octet::kernels::cuda {
namespace {

// The numbers in the scratch.
enum Fp8Memory { kPScaleInv, kPScale, kPAmax, kOAmax };

__global__ void prepare_scalars_kernel(float* memory) {
  memory[kPScaleInv] = 1 / kProbabilityScale;
  memory[kPScale] = kProbabilityScale;
  memory[kPAmax] = memory[kOAmax] = 0;
}

__global__ void take_scalars_kernel(const float* memory, const float* scale, float* scale_inv, float* amax) {
  *scale_inv = 1 / *scale;
  // An amax is not negative, so its bits are ordered as it is, and those of NaN are above all others.
  if (amax) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(memory[kOAmax]) & 0x7FFFFFFFu);
}

}  // namespace

std::array<void*, kFp8Scalars> fp8_scalars(const AttentionForwardFp8& op, float* memory) {
  return {op.q.rowwise_scale_inv.data,
          op.k.rowwise_scale_inv.data,
          op.v.rowwise_scale_inv.data,
          memory + kPScaleInv,
          memory + kPScale,
          const_cast<float*>(op.o.scale),  // cuDNN takes all pointers as writable
          memory + kPAmax,
          memory + kOAmax};
}

void prepare_fp8_scalars(Stream& stream, float* memory) {
  prepare_scalars_kernel<<<1, 1, 0, octet::cuda::native_stream(stream)>>>(memory);
  octet::cuda::check_launch("prepare_fp8_scalars");
}

void take_fp8_scalars(Stream& stream, const AttentionForwardFp8& op, const float* memory) {
  take_scalars_kernel<<<1, 1, 0, octet::cuda::native_stream(stream)>>>(memory, op.o.scale, op.o.out.rowwise_scale_inv.as<float>(),
                                                                       op.o.amax);
  octet::cuda::check_launch("take_fp8_scalars");
}

}  // namespace octet::kernels::cuda
