#include "octet/kernels/norm/norm.h"

#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/norm/norm_cpu.h"
#include "octet/kernels/norm/norm_cuda.h"

namespace octet::kernels {

void sum_squares(Queue& queue, Arena& scratch, const SumSquares& op) {
  require(op.x.contiguous(), "sum_squares: x ", op.x.shape, " must be contiguous, its row stride is ", op.x.row_stride);
  require(op.total != nullptr, "sum_squares: no total");
  const std::int64_t pieces = ceil_div(op.x.elements(), cpu::kSumSquaresPiece);
  const ArenaScope scope(scratch);
  const Tensor partials = allocate(scratch, DType::f64, {pieces});
  queue.count("sum_squares", {.flops = 2.0 * static_cast<double>(op.x.elements()), .bytes = static_cast<double>(op.x.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::sum_squares(op, partials.as<double>());
  if constexpr (kCudaBackend) {
    if (queue.kind() == DeviceKind::cuda) cuda::sum_squares(queue, op, partials.as<double>());
  }
}

}  // namespace octet::kernels
