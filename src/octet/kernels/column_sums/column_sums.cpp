#include "octet/kernels/column_sums/column_sums.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"

namespace octet::kernels {

void column_sums(Stream& stream, Arena& scratch, const ColumnSums& op) {
  require(op.x.shape.rank() == 2, "column_sums: x must be [T, C], got ", op.x.shape);
  require(op.y.shape == Shape{op.x.cols()}, "column_sums: y must be [", op.x.cols(), "], got ", op.y.shape);
  const std::int64_t rows = op.x.rows();
  const bool on_gpu = stream.target() == DeviceKind::cuda;
  const ArenaScope scope(scratch);
  const Tensor partials = allocate(scratch, op.x.dtype == DType::f64 ? DType::f64 : DType::f32,
                                   {on_gpu ? cuda::column_partials(rows) : cpu::column_partials(rows), op.x.cols()});
  stream.count("column_sums", {.flops = static_cast<double>(op.x.elements()),
                               .bytes = static_cast<double>(op.x.bytes() + 2 * partials.bytes() + 2 * op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::column_sums(op, partials); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::column_sums(stream, op, partials);
  }
}

}  // namespace octet::kernels
