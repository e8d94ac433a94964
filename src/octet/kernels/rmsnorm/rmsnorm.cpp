#include "octet/kernels/rmsnorm/rmsnorm.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/norm_rows.h"
#include "octet/kernels/quantize/fusion_cuda.h"
#include "octet/kernels/rmsnorm/rmsnorm_cpu.h"
#include "octet/kernels/rmsnorm/rmsnorm_cuda.h"

namespace octet::kernels {
namespace {

// Checks x [T, D], weight [D] and rstd [T].
void check_operands(const char* name, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  require(x.shape.rank() == 2, name, ": x must be [T, D], got ", x.shape);
  require(weight.shape == Shape{x.cols()}, name, ": weight must be [", x.cols(), "], got ", weight.shape);
  require(weight.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", weight ", name_of(weight.dtype));
  require(rstd.shape == Shape{x.rows()}, name, ": rstd must be [", x.rows(), "], got ", rstd.shape);
  require(rstd.dtype == statistics_dtype(x.dtype), name, ": rstd must be ", name_of(statistics_dtype(x.dtype)), ", got ",
          name_of(rstd.dtype));
}

void check_like_x(const char* name, const char* operand, const Tensor& tensor, const Tensor& x) {
  require(tensor.shape == x.shape, name, ": ", operand, " must be ", x.shape, ", got ", tensor.shape);
  require(tensor.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", ", operand, " ", name_of(tensor.dtype));
}

}  // namespace

void rmsnorm_forward(Stream& stream, Arena& scratch, const RmsNormForward& op) {
  check_operands("rmsnorm_forward", op.x, op.weight, op.rstd);
  const Fusion fused(stream, op.codes);
  if (op.codes && !fused) {
    return write_then_quantize(stream, scratch, op.codes, op.y, op.x.dtype, op.x.shape, [&](const Tensor& y) {
      RmsNormForward plain = op;
      plain.y = y;
      plain.codes = {};
      rmsnorm_forward(stream, scratch, plain);
    });
  }
  if (!fused) check_like_x("rmsnorm_forward", "y", op.y, op.x);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  stream.count("rmsnorm_forward", {.flops = 4.0 * static_cast<double>(op.x.elements()),
                                   .bytes = reads * static_cast<double>(op.x.bytes()) + fused.result_bytes(op.y) +
                                            static_cast<double>(op.weight.bytes() + op.rstd.bytes())});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.x.rows(), op.x.cols());
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::rmsnorm_forward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::rmsnorm_forward(stream, op, amaxes);
  }
}

void rmsnorm_backward(Stream& stream, Arena& scratch, const RmsNormBackward& op) {
  check_operands("rmsnorm_backward", op.x, op.weight, op.rstd);
  check_like_x("rmsnorm_backward", "gy", op.gy, op.x);
  check_like_x("rmsnorm_backward", "gx", op.gx, op.x);
  require(!op.gweight || op.gweight.shape == op.weight.shape, "rmsnorm_backward: gweight must be ", op.weight.shape, ", got ",
          op.gweight.shape);
  const ArenaScope scope(scratch);
  const bool on_gpu = stream.target() == DeviceKind::cuda;
  const Fusion fused(stream, op.codes);
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  const std::int64_t parts = on_gpu ? cuda::column_partials(rows) : cpu::column_partials(rows);
  const Tensor partials = allocate(scratch, op.rstd.dtype, {parts, cols});
  // If the scales need the amax of the whole new gx, gx is read once more for the codes.
  const std::size_t reads = fused.needs_amax_pass() ? 1 : 0;
  stream.count(
      "rmsnorm_backward",
      {.flops = 12.0 * static_cast<double>(op.x.elements()),
       .bytes = static_cast<double>(op.gy.bytes() + op.x.bytes() + (2 + reads) * op.gx.bytes() + op.rstd.bytes() +
                                    op.weight.bytes() + (op.gweight ? 2 * op.gweight.bytes() : 0) + fused.code_bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::rmsnorm_backward(op, partials); });
  float* const amaxes = fused.allocate_amaxes(scratch, rows, cols);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) {
      RmsNormBackward kernels = op;
      if (!fused) kernels.codes = {};
      cuda::rmsnorm_backward(stream, kernels, partials, amaxes);
    }
  }
  if (op.codes && !fused) quantize(stream, scratch, op.codes.of(op.gx));
}

}  // namespace octet::kernels
