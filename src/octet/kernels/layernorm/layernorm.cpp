#include "octet/kernels/layernorm/layernorm.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/layernorm/layernorm_cpu.h"
#include "octet/kernels/layernorm/layernorm_cuda.h"
#include "octet/kernels/norm_rows.h"
#include "octet/kernels/quantize/fusion_cuda.h"

namespace octet::kernels {
namespace {

void check_tensor(const char* name, const char* operand, const Tensor& tensor, const Shape& shape, DType dtype) {
  require(tensor.shape == shape, name, ": ", operand, " must be ", shape, ", got ", tensor.shape);
  require(tensor.dtype == dtype, name, ": ", operand, " must be ", name_of(dtype), ", got ", name_of(tensor.dtype));
}

// Checks x [T, D], weight [D], mean [T] and rstd [T].
void check_operands(const char* name, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd) {
  require(x.shape.rank() == 2, name, ": x must be [T, D], got ", x.shape);
  check_tensor(name, "weight", weight, {x.cols()}, x.dtype);
  check_tensor(name, "mean", mean, {x.rows()}, statistics_dtype(x.dtype));
  check_tensor(name, "rstd", rstd, {x.rows()}, statistics_dtype(x.dtype));
}

}  // namespace

void layernorm_forward(Stream& stream, Arena& scratch, const LayerNormForward& op) {
  check_operands("layernorm_forward", op.x, op.weight, op.mean, op.rstd);
  check_tensor("layernorm_forward", "bias", op.bias, op.weight.shape, op.x.dtype);
  const Fusion fused(stream, op.codes);
  if (op.codes && !fused) {
    return write_then_quantize(stream, scratch, op.codes, op.y, op.x.dtype, op.x.shape, [&](const Tensor& y) {
      LayerNormForward plain = op;
      plain.y = y;
      plain.codes = {};
      layernorm_forward(stream, scratch, plain);
    });
  }
  if (!fused) check_tensor("layernorm_forward", "y", op.y, op.x.shape, op.x.dtype);
  const int reads = fused ? (fused.needs_amax_pass() ? 3 : 2) : 1;  // one read is for the statistics
  stream.count("layernorm_forward", {.flops = 8.0 * static_cast<double>(op.x.elements()),
                                     .bytes = reads * static_cast<double>(op.x.bytes()) + fused.result_bytes(op.y) +
                                              static_cast<double>(2 * op.weight.bytes() + 2 * op.rstd.bytes())});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.x.rows(), op.x.cols());
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::layernorm_forward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::layernorm_forward(stream, op, amaxes);
  }
}

void layernorm_backward(Stream& stream, Arena& scratch, const LayerNormBackward& op) {
  check_operands("layernorm_backward", op.x, op.weight, op.mean, op.rstd);
  check_tensor("layernorm_backward", "gy", op.gy, op.x.shape, op.x.dtype);
  check_tensor("layernorm_backward", "gx", op.gx, op.x.shape, op.x.dtype);
  if (op.gweight) {
    require(op.gweight.shape == op.weight.shape, "layernorm_backward: gweight must be ", op.weight.shape, ", got ",
            op.gweight.shape);
    check_tensor("layernorm_backward", "gbias", op.gbias, op.weight.shape, op.gweight.dtype);
  }
  const ArenaScope scope(scratch);
  const bool on_gpu = stream.target() == DeviceKind::cuda;
  const Fusion fused(stream, op.codes);
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  const std::int64_t parts = on_gpu ? cuda::column_partials(rows) : cpu::column_partials(rows);
  const Tensor weight_partials = allocate(scratch, op.rstd.dtype, {parts, cols});
  const Tensor bias_partials = allocate(scratch, op.rstd.dtype, {parts, cols});
  const std::size_t reads = fused ? (fused.needs_amax_pass() ? 2 : 1) : 0;  // reads of the new gx for its codes
  stream.count(
      "layernorm_backward",
      {.flops = 16.0 * static_cast<double>(op.x.elements()),
       .bytes = static_cast<double>(op.gy.bytes() + op.x.bytes() + (2 + reads) * op.gx.bytes() + 2 * op.rstd.bytes() +
                                    op.weight.bytes() + (op.gweight ? 4 * op.gweight.bytes() : 0) + fused.code_bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::layernorm_backward(op, weight_partials, bias_partials); });
  float* const amaxes = fused.allocate_amaxes(scratch, rows, cols);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) {
      LayerNormBackward kernels = op;
      if (!fused) kernels.codes = {};
      cuda::layernorm_backward(stream, kernels, weight_partials, bias_partials, amaxes);
    }
  }
  if (op.codes && !fused) quantize(stream, scratch, op.codes.of(op.gx));
}

}  // namespace octet::kernels
