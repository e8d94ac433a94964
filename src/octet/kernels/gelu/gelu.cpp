#include "octet/kernels/gelu/gelu.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gelu/gelu_cpu.h"
#include "octet/kernels/gelu/gelu_cuda.h"
#include "octet/kernels/quantize/quantize_cuda.h"

namespace octet::kernels {
namespace {

void check_like_x(const char* name, const char* operand, const Tensor& tensor, const Tensor& x) {
  require(x.shape.rank() == 2, name, ": x must be [T, F], got ", x.shape);
  require(tensor.shape == x.shape, name, ": ", operand, " must be ", x.shape, ", got ", tensor.shape);
  require(tensor.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", ", operand, " ", name_of(tensor.dtype));
}

}  // namespace

void gelu_forward(Stream& stream, Arena& scratch, const GeluForward& op) {
  const bool fused = stream.target() == DeviceKind::cuda && op.codes && fuses_on_cuda(op.codes);
  if (op.codes && !fused) {
    const ArenaScope scope(scratch);
    const Tensor y = op.y ? op.y : allocate(scratch, op.x.dtype, op.x.shape);
    gelu_forward(stream, scratch, {.kind = op.kind, .x = op.x, .y = y});
    quantize(stream, scratch, op.codes.of(y));
    return;
  }
  if (!fused) check_like_x("gelu_forward", "y", op.y, op.x);
  const int reads = fused && needs_amax_first(op.codes.spec) ? 2 : 1;
  stream.count("gelu_forward", {.flops = 8.0 * static_cast<double>(op.x.elements()),
                                .bytes = reads * static_cast<double>(op.x.bytes()) +
                                         static_cast<double>(fused ? written_bytes(op.codes) : op.y.bytes())});
  const ArenaScope scope(scratch);
  float* const amaxes = fused ? cuda::allocate_amaxes(scratch, op.codes.spec, op.x.rows(), op.x.cols()) : nullptr;
  if (stream.kind() == DeviceKind::cpu) cpu::gelu_forward(op);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::gelu_forward(stream, op, amaxes);
  }
}

void gelu_backward(Stream& stream, Arena& scratch, const GeluBackward& op) {
  check_like_x("gelu_backward", "gy", op.gy, op.x);
  const bool fused = stream.target() == DeviceKind::cuda && op.codes && fuses_on_cuda(op.codes);
  if (op.codes && !fused) {
    const ArenaScope scope(scratch);
    const Tensor gx = op.gx ? op.gx : allocate(scratch, op.x.dtype, op.x.shape);
    gelu_backward(stream, scratch, {.kind = op.kind, .x = op.x, .gy = op.gy, .gx = gx});
    quantize(stream, scratch, op.codes.of(gx));
    return;
  }
  if (!fused) check_like_x("gelu_backward", "gx", op.gx, op.x);
  const int reads = fused && needs_amax_first(op.codes.spec) ? 2 : 1;
  stream.count("gelu_backward", {.flops = 14.0 * static_cast<double>(op.x.elements()),
                                 .bytes = reads * static_cast<double>(op.x.bytes() + op.gy.bytes()) +
                                          static_cast<double>(fused ? written_bytes(op.codes) : op.gx.bytes())});
  const ArenaScope scope(scratch);
  float* const amaxes = fused ? cuda::allocate_amaxes(scratch, op.codes.spec, op.x.rows(), op.x.cols()) : nullptr;
  if (stream.kind() == DeviceKind::cpu) cpu::gelu_backward(op);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::gelu_backward(stream, op, amaxes);
  }
}

}  // namespace octet::kernels
