#include "octet/kernels/norm/norm.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/norm/norm_cpu.h"
#include "octet/kernels/norm/norm_cuda.h"

namespace octet::kernels {

void sum_squares(Stream& stream, Arena& scratch, const SumSquares& op) {
  require(op.total != nullptr, "sum_squares: no total");
  const ArenaScope scope(scratch);
  const Tensor partials = allocate(scratch, DType::f64, {op.x.table().chunks()});
  stream.count("sum_squares", {.flops = 2.0 * op.x.elements(), .bytes = op.x.bytes()});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::sum_squares(op, partials.as<double>()); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::sum_squares(stream, op, partials.as<double>());
  }
}

}  // namespace octet::kernels
