#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/attention/attention_fp8_cuda.h"

namespace octet::kernels::cuda {
namespace {

// The numbers in the scratch: what cuDNN reads, and the amaxes that it writes.
enum Fp8Memory { kPScaleInv, kPScale, kPAmax, kOAmax };
enum Fp8BackwardMemory { kDsScaleInv = kPScale + 1, kDsAmax, kGqAmax, kGkAmax, kGvAmax };
constexpr int kAmaxes = 4;

// `ds_scale` is nullptr in the forward pass.
__global__ void prepare_scalars_kernel(float* memory, const float* ds_scale) {
  memory[kPScaleInv] = 1 / kProbabilityScale;
  memory[kPScale] = kProbabilityScale;
  if (ds_scale) memory[kDsScaleInv] = 1 / *ds_scale;
  for (int i = 0; i < kAmaxes; ++i) memory[(ds_scale ? kDsAmax : kPAmax) + i] = 0;
}

// Something that cuDNN has cast: what it found, and where that goes. scale_inv and amax may be nullptr.
struct Result {
  const float* found;
  const float* scale;
  float *scale_inv, *amax;
};
struct Results {
  Result of[kAmaxes];
};

__global__ void take_scalars_kernel(Results results) {
  const Result& r = results.of[threadIdx.x];
  if (r.scale_inv) *r.scale_inv = 1 / *r.scale;
  // An amax is not negative, so its bits are ordered as it is, and those of NaN are above all others.
  if (r.amax) atomicMax(reinterpret_cast<unsigned*>(r.amax), __float_as_uint(*r.found) & 0x7FFFFFFFu);
}

Result result(const QuantizeEpilogue& to, const float* found) {
  return {found, to.scale, to.out.rowwise_scale_inv ? to.out.rowwise_scale_inv.as<float>() : nullptr, to.amax};
}
void take(Stream& stream, const Results& results, unsigned count) {
  take_scalars_kernel<<<1, count, 0, octet::cuda::native_stream(stream)>>>(results);
  octet::cuda::check_launch("take_fp8_scalars");
}

// cuDNN takes all pointers as writable.
void* writable(const float* scalar) { return const_cast<float*>(scalar); }

}  // namespace

std::array<void*, kFp8Scalars> fp8_scalars(const AttentionForwardFp8& op, float* memory) {
  return {op.q.rowwise_scale_inv.data,
          op.k.rowwise_scale_inv.data,
          op.v.rowwise_scale_inv.data,
          memory + kPScaleInv,
          memory + kPScale,
          writable(op.o.scale),
          memory + kPAmax,
          memory + kOAmax};
}

std::array<void*, kFp8BackwardScalars> fp8_scalars(const AttentionBackwardFp8& op, float* memory) {
  return {op.q.rowwise_scale_inv.data,
          op.k.rowwise_scale_inv.data,
          op.v.rowwise_scale_inv.data,
          op.o.rowwise_scale_inv.data,
          op.go.rowwise_scale_inv.data,
          memory + kPScaleInv,
          memory + kDsScaleInv,
          memory + kPScale,
          writable(op.ds.scale),
          writable(op.gq.scale),
          writable(op.gk.scale),
          writable(op.gv.scale),
          memory + kDsAmax,
          memory + kGqAmax,
          memory + kGkAmax,
          memory + kGvAmax};
}

void prepare_fp8_scalars(Stream& stream, const AttentionForwardFp8&, float* memory) {
  prepare_scalars_kernel<<<1, 1, 0, octet::cuda::native_stream(stream)>>>(memory, nullptr);
  octet::cuda::check_launch("prepare_fp8_scalars");
}

void prepare_fp8_scalars(Stream& stream, const AttentionBackwardFp8& op, float* memory) {
  prepare_scalars_kernel<<<1, 1, 0, octet::cuda::native_stream(stream)>>>(memory, op.ds.scale);
  octet::cuda::check_launch("prepare_fp8_scalars");
}

void take_fp8_scalars(Stream& stream, const AttentionForwardFp8& op, const float* memory) {
  take(stream, {{result(op.o, memory + kOAmax)}}, 1);
}

void take_fp8_scalars(Stream& stream, const AttentionBackwardFp8& op, const float* memory) {
  take(stream,
       {{result(op.ds, memory + kDsAmax), result(op.gq, memory + kGqAmax), result(op.gk, memory + kGkAmax),
         result(op.gv, memory + kGvAmax)}},
       kAmaxes);
}

}  // namespace octet::kernels::cuda
