#include "octet/kernels/rmsnorm/rmsnorm.h"

#include "octet/kernels/rmsnorm/rmsnorm_cpu.h"

namespace octet::kernels {
namespace {

DType real_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// x [T, D], weight [D] and rstd [T] of one rmsnorm.
void check_operands(const char* name, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  require(x.shape.rank() == 2, name, ": x must be [T, D], got ", x.shape);
  require(weight.shape == Shape{x.cols()}, name, ": weight must be [", x.cols(), "], got ", weight.shape);
  require(weight.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", weight ", name_of(weight.dtype));
  require(rstd.shape == Shape{x.rows()}, name, ": rstd must be [", x.rows(), "], got ", rstd.shape);
  require(rstd.dtype == real_of(x.dtype), name, ": rstd must be ", name_of(real_of(x.dtype)), ", got ", name_of(rstd.dtype));
}

void check_like_x(const char* name, const char* operand, const Tensor& tensor, const Tensor& x) {
  require(tensor.shape == x.shape, name, ": ", operand, " must be ", x.shape, ", got ", tensor.shape);
  require(tensor.dtype == x.dtype, name, ": x is ", name_of(x.dtype), ", ", operand, " ", name_of(tensor.dtype));
}

}  // namespace

void rmsnorm_forward(Queue& queue, const RmsNormForward& op) {
  check_operands("rmsnorm_forward", op.x, op.weight, op.rstd);
  check_like_x("rmsnorm_forward", "y", op.y, op.x);
  queue.count({.flops = 4.0 * static_cast<double>(op.x.elements()),
               .bytes = static_cast<double>(op.x.bytes() + op.y.bytes() + op.weight.bytes() + op.rstd.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::rmsnorm_forward(op);
}

void rmsnorm_backward(Queue& queue, Arena& scratch, const RmsNormBackward& op) {
  check_operands("rmsnorm_backward", op.x, op.weight, op.rstd);
  check_like_x("rmsnorm_backward", "gy", op.gy, op.x);
  check_like_x("rmsnorm_backward", "gx", op.gx, op.x);
  require(op.gweight.shape == op.weight.shape, "rmsnorm_backward: gweight must be ", op.weight.shape, ", got ", op.gweight.shape);
  const ArenaScope scope(scratch);
  const std::int64_t parts = ceil_div(op.x.rows(), cpu::rmsnorm_rows_per_partial(op.x.rows()));
  const Tensor partials = allocate(scratch, op.rstd.dtype, {parts, op.x.cols()});
  queue.count({.flops = 12.0 * static_cast<double>(op.x.elements()),
               .bytes = static_cast<double>(op.gy.bytes() + op.x.bytes() + 2 * op.gx.bytes() + op.rstd.bytes() +
                                            op.weight.bytes() + 2 * op.gweight.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::rmsnorm_backward(op, partials);
}

}  // namespace octet::kernels
