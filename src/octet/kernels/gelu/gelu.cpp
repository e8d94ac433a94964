#include "octet/kernels/gelu/gelu.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gelu/gelu_cpu.h"
#include "octet/kernels/gelu/gelu_cuda.h"
#include "octet/kernels/quantize/fusion_cuda.h"

namespace octet::kernels {
namespace {

void check_like_x(const char* name, const char* operand, const Tensor& tensor, const Tensor& x) {
  require(x.shape.rank() == 2, name, ": x must be [T, F], got ", x.shape);
  require(tensor.shape == x.shape, name, ": ", operand, " must be ", x.shape, ", got ", tensor.shape);
  require(tensor.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", ", operand, " ", name_of(tensor.dtype));
}

}  // namespace

void gelu_forward(Stream& stream, Arena& scratch, const GeluForward& op) {
  const Fusion fused(stream, op.codes);
  if (op.codes && !fused) {
    return write_then_quantize(stream, scratch, op.codes, op.y, op.x.dtype, op.x.shape,
                               [&](const Tensor& y) { gelu_forward(stream, scratch, {.kind = op.kind, .x = op.x, .y = y}); });
  }
  if (!fused) check_like_x("gelu_forward", "y", op.y, op.x);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  stream.count("gelu_forward", {.flops = 8.0 * static_cast<double>(op.x.elements()),
                                .bytes = reads * static_cast<double>(op.x.bytes()) + fused.result_bytes(op.y)});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.x.rows(), op.x.cols());
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::gelu_forward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::gelu_forward(stream, op, amaxes);
  }
}

void gelu_backward(Stream& stream, Arena& scratch, const GeluBackward& op) {
  check_like_x("gelu_backward", "gy", op.gy, op.x);
  const Fusion fused(stream, op.codes);
  if (op.codes && !fused) {
    return write_then_quantize(stream, scratch, op.codes, op.gx, op.x.dtype, op.x.shape, [&](const Tensor& gx) {
      gelu_backward(stream, scratch, {.kind = op.kind, .x = op.x, .gy = op.gy, .gx = gx});
    });
  }
  if (!fused) check_like_x("gelu_backward", "gx", op.gx, op.x);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  stream.count("gelu_backward", {.flops = 14.0 * static_cast<double>(op.x.elements()),
                                 .bytes = reads * static_cast<double>(op.x.bytes() + op.gy.bytes()) + fused.result_bytes(op.gx)});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.x.rows(), op.x.cols());
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::gelu_backward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::gelu_backward(stream, op, amaxes);
  }
}

}  // namespace octet::kernels
