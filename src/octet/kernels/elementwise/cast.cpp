#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/elementwise/elementwise_cpu.h"
#include "octet/kernels/elementwise/elementwise_cuda.h"

namespace octet::kernels {
namespace {

bool is_castable(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

}  // namespace

void cast(Stream& stream, const Cast& op) {
  require(op.x.shape == op.y.shape, "cast: x ", op.x.shape, " to y ", op.y.shape);
  require(is_castable(op.x.dtype) && is_castable(op.y.dtype), "cast: no conversion from ", name_of(op.x.dtype), " to ",
          name_of(op.y.dtype));
  stream.count("cast", {.flops = 0, .fp8_flops = 0, .bytes = static_cast<double>(op.x.bytes() + op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::cast(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::cast(stream, op);
  }
}

}  // namespace octet::kernels
