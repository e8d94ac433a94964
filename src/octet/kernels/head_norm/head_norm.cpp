#include "octet/kernels/head_norm/head_norm.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/column_sums/column_sums_cuda.h"
#include "octet/kernels/head_norm/head_norm_cpu.h"
#include "octet/kernels/head_norm/head_norm_cuda.h"

namespace octet::kernels {
namespace {

void check(const char* name, const HeadNorm& norm, const Tensor& x, const Tensor& before, const Tensor& rstd) {
  const DType real = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  require(norm.head_dim > 0 && norm.head_dim % 2 == 0, name, ": head_dim must be even and positive, got ", norm.head_dim);
  const Shape whole{x.rows(), norm.heads() * norm.head_dim};
  require(x.shape == whole, name, ": x must be ", whole, ", got ", x.shape);
  require(before.shape == whole && before.dtype == x.dtype, name, ": before must be ", name_of(x.dtype), " ", whole, ", got ",
          name_of(before.dtype), " ", before.shape);
  require(rstd.shape == Shape({x.rows(), norm.heads()}) && rstd.dtype == real, name, ": rstd must be ", name_of(real), " [",
          x.rows(), ", ", norm.heads(), "], got ", name_of(rstd.dtype), " ", rstd.shape);
  for (const Tensor& weight : {norm.q_weight, norm.k_weight}) {
    require(weight.shape == Shape{norm.head_dim} && weight.dtype == x.dtype, name, ": weights must be ", name_of(x.dtype), " [",
            norm.head_dim, "], got ", name_of(weight.dtype), " ", weight.shape);
  }
}

}  // namespace

void head_norm_forward(Stream& stream, const HeadNormForward& op) {
  check("head_norm_forward", op.norm, op.x, op.before, op.rstd);
  stream.count("head_norm_forward", {.flops = 4.0 * static_cast<double>(op.x.elements()),
                                     .bytes = static_cast<double>(2 * op.x.bytes() + op.before.bytes() + op.rstd.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::head_norm_forward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::head_norm_forward(stream, op);
  }
}

void head_norm_backward(Stream& stream, Arena& scratch, const HeadNormBackward& op) {
  check("head_norm_backward", op.norm, op.g, op.before, op.rstd);
  const ArenaScope scope(scratch);
  const std::int64_t rows = op.g.rows();
  const std::int64_t parts = stream.target() == DeviceKind::cuda ? cuda::column_partials(rows) : cpu::column_partials(rows);
  const Tensor q_partials = allocate(scratch, op.rstd.dtype, {parts, op.norm.head_dim});
  const Tensor k_partials = allocate(scratch, op.rstd.dtype, {parts, op.norm.head_dim});
  stream.count("head_norm_backward", {.flops = 12.0 * static_cast<double>(op.g.elements()),
                                      .bytes = static_cast<double>(2 * op.g.bytes() + op.before.bytes() + op.rstd.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::head_norm_backward(op, q_partials, k_partials); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::head_norm_backward(stream, op, q_partials, k_partials);
  }
}

}  // namespace octet::kernels
