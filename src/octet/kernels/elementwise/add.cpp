#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/elementwise/elementwise_cpu.h"
#include "octet/kernels/elementwise/elementwise_cuda.h"

namespace octet::kernels {
namespace {

bool is_addable(DType dtype) { return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16; }

}  // namespace

void add(Stream& stream, const Add& op) {
  require(op.x.shape == op.y.shape, "add: x ", op.x.shape, " to y ", op.y.shape);
  require(is_addable(op.x.dtype) && is_addable(op.y.dtype), "add: no sum of ", name_of(op.x.dtype), " and ", name_of(op.y.dtype));
  const std::size_t read = op.x.row_stride == 0 ? static_cast<std::size_t>(op.x.cols()) * size_of(op.x.dtype) : op.x.bytes();
  stream.count("add", {.flops = 0, .fp8_flops = 0, .bytes = static_cast<double>(read + 2 * op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::add(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::add(stream, op);
  }
}

}  // namespace octet::kernels
