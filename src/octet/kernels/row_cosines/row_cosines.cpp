#include "octet/kernels/row_cosines/row_cosines.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/row_cosines/row_cosines_cpu.h"
#include "octet/kernels/row_cosines/row_cosines_cuda.h"

namespace octet::kernels {

void row_cosines(Stream& stream, const RowCosines& op) {
  require(op.x.shape.rank() == 2 && op.x.rows() % 2 == 0, "row_cosines: x must be [2F, D], got ", op.x.shape);
  require(op.y.shape == Shape{op.x.rows() / 2} && op.y.dtype == DType::f32, "row_cosines: y must be [", op.x.rows() / 2,
          "] F32, got ", op.y.shape, " ", name_of(op.y.dtype));
  stream.count("row_cosines", {.flops = 3.0 * static_cast<double>(op.x.elements()), .bytes = static_cast<double>(op.x.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::row_cosines(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::row_cosines(stream, op);
  }
}

}  // namespace octet::kernels
