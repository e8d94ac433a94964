#include "octet/kernels/cross_entropy/cross_entropy.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/cross_entropy/cross_entropy_cpu.h"
#include "octet/kernels/cross_entropy/cross_entropy_cuda.h"

namespace octet::kernels {
namespace {

void check_targets(const char* name, const Tensor& targets, std::int64_t tokens) {
  require(targets.dtype == DType::i32 && targets.shape == Shape{tokens}, name, ": targets must be I32 [", tokens, "], got ",
          name_of(targets.dtype), " ", targets.shape);
}

}  // namespace

void cross_entropy(Queue& queue, const CrossEntropy& op) {
  require(op.logits.shape.rank() == 2 && op.logits.cols() > 0, "cross_entropy: logits must be [T, V], got ", op.logits.shape);
  check_targets("cross_entropy", op.targets, op.logits.rows());
  const DType loss = op.logits.dtype == DType::f64 ? DType::f64 : DType::f32;
  require(op.loss.dtype == loss && op.loss.shape == Shape{op.logits.rows()}, "cross_entropy: loss must be ", name_of(loss), " [",
          op.logits.rows(), "], got ", name_of(op.loss.dtype), " ", op.loss.shape);
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  queue.count("cross_entropy",
              {.flops = (writes ? 5.0 : 3.0) * static_cast<double>(op.logits.elements()),
               .bytes = static_cast<double>((writes ? 2 : 1) * op.logits.bytes() + op.targets.bytes() + op.loss.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::cross_entropy(op);
  if constexpr (kCudaBackend) {
    if (queue.kind() == DeviceKind::cuda) cuda::cross_entropy(queue, op);
  }
}

void loss_sum(Queue& queue, const LossSum& op) {
  require(op.loss.shape.rank() == 1 && op.loss.contiguous(), "loss_sum: loss must be [T], got ", op.loss.shape);
  check_targets("loss_sum", op.targets, op.loss.rows());
  require(op.total != nullptr, "loss_sum: no total");
  queue.count("loss_sum", {.flops = static_cast<double>(op.loss.elements()),
                           .bytes = static_cast<double>(op.loss.bytes() + op.targets.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::loss_sum(op);
  if constexpr (kCudaBackend) {
    if (queue.kind() == DeviceKind::cuda) cuda::loss_sum(queue, op);
  }
}

}  // namespace octet::kernels
