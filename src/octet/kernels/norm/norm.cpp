#include "octet/kernels/norm/norm.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/norm/norm_cpu.h"
#include "octet/kernels/norm/norm_cuda.h"

namespace octet::kernels {

void sum_squares(Stream& stream, Arena& scratch, const SumSquares& op) {
  require(op.total != nullptr, "sum_squares: no total");
  std::int64_t pieces = 0;
  double elements = 0, bytes = 0;
  for (const Tensor& x : op.x) {
    require(x.contiguous(), "sum_squares: x ", x.shape, " must be contiguous, its row stride is ", x.row_stride);
    pieces += cpu::sum_squares_pieces(x);
    elements += static_cast<double>(x.elements());
    bytes += static_cast<double>(x.bytes());
  }
  const ArenaScope scope(scratch);
  const Tensor partials = allocate(scratch, DType::f64, {pieces});
  stream.count("sum_squares", {.flops = 2.0 * elements, .bytes = bytes});
  if (stream.kind() == DeviceKind::cpu) cpu::sum_squares(op, partials.as<double>());
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::sum_squares(stream, op, partials.as<double>());
  }
}

}  // namespace octet::kernels
