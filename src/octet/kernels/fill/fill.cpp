#include "octet/kernels/fill/fill.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/fill/fill_cpu.h"
#include "octet/kernels/fill/fill_cuda.h"

namespace octet::kernels {

void fill_normal(Stream& stream, const FillNormal& op) {
  require(op.x.contiguous(), "fill_normal: x ", op.x.shape, " must be contiguous, its row stride is ", op.x.row_stride);
  require(op.elements.valid(), "fill_normal: no element has the index ", op.elements.first);
  stream.count("fill_normal", {.bytes = static_cast<double>(op.x.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::fill_normal(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::fill_normal(stream, op);
  }
}

void zero(Stream& stream, const Zero& op) {
  if (op.x.table().chunks() == 0) return;
  stream.count("zero", {.bytes = op.x.bytes()});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::zero(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::zero(stream, op);
  }
}

}  // namespace octet::kernels
