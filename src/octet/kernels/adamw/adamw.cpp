#include "octet/kernels/adamw/adamw.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/adamw/adamw_cpu.h"
#include "octet/kernels/adamw/adamw_cuda.h"

namespace octet::kernels {
namespace {

void check_count(const char* operand, const Tensor& tensor, std::int64_t count) {
  require(tensor.elements() == count && tensor.contiguous(), "adamw: ", operand, " must be ", count, " contiguous elements, got ",
          tensor.shape, " with row stride ", tensor.row_stride);
}

void check_dtypes(const AdamW& op) {
  const DType weight = op.weight.dtype, moment = op.moment1.dtype;
  require(weight == DType::f32 || weight == DType::f64 || weight == DType::bf16, "adamw: no weights of ", name_of(weight));
  require(moment == op.moment2.dtype, "adamw: moments of ", name_of(moment), " and ", name_of(op.moment2.dtype));
  require(weight == DType::f64 ? moment == DType::f64 : moment == DType::f32 || moment == DType::bf16, "adamw: weights of ",
          name_of(weight), " with moments of ", name_of(moment));
  require(!op.value || (weight == DType::f32 && op.value.dtype == DType::bf16), "adamw: a copy of ", name_of(op.value.dtype),
          " of weights of ", name_of(weight));
}

}  // namespace

void adamw(Stream& stream, const AdamW& op) {
  const std::int64_t count = op.weight.elements();
  check_count("weight", op.weight, count);
  check_count("grad", op.grad, count);
  check_count("moment1", op.moment1, count);
  check_count("moment2", op.moment2, count);
  if (op.value) check_count("value", op.value, count);
  check_dtypes(op);
  require(op.scalars != nullptr, "adamw: no scalars");
  require(op.elements.valid(), "adamw: no element has the index ", op.elements.first);
  require(op.elements.consecutive() || op.elements.in_groups_of(8), "adamw: columns [", op.elements.run, " of ",
          op.elements.stride, "] are no multiples of 8");
  stream.count("adamw",
               {.flops = 16.0 * static_cast<double>(count),
                .bytes = static_cast<double>(op.grad.bytes() + 2 * (op.weight.bytes() + op.moment1.bytes() + op.moment2.bytes()) +
                                             (op.value ? op.value.bytes() : 0))});
  if (stream.kind() == DeviceKind::cpu) cpu::adamw(op);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::adamw(stream, op);
  }
}

void prepare_step(Stream& stream, const PrepareStep& op) {
  require(op.loss_total && op.sum_squares && op.updates && op.scalars, "prepare_step: a device pointer is missing");
  if (stream.kind() == DeviceKind::cpu) cpu::prepare_step(op);
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::prepare_step(stream, op);
  }
}

}  // namespace octet::kernels
