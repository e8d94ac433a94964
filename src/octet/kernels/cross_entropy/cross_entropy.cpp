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

DType statistics_of(const Tensor& logits) { return logits.dtype == DType::f64 ? DType::f64 : DType::f32; }

void check_logits(const char* name, const Tensor& logits) {
  require(logits.shape.rank() == 2 && logits.cols() > 0, name, ": logits must be [T, V], got ", logits.shape);
}

void check_rows(const char* name, const char* operand, const Tensor& x, DType dtype, const Shape& shape) {
  require(x.dtype == dtype && x.shape == shape && x.contiguous(), name, ": ", operand, " must be ", name_of(dtype), " ", shape,
          ", got ", name_of(x.dtype), " ", x.shape);
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& op) {
  check_logits("cross_entropy", op.logits);
  check_targets("cross_entropy", op.targets, op.logits.rows());
  check_rows("cross_entropy", "loss", op.loss, statistics_of(op.logits), {op.logits.rows()});
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  stream.count("cross_entropy",
               {.flops = (writes ? 5.0 : 3.0) * static_cast<double>(op.logits.elements()),
                .bytes = static_cast<double>((writes ? 2 : 1) * op.logits.bytes() + op.targets.bytes() + op.loss.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::cross_entropy(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::cross_entropy(stream, op);
  }
}

void softmax_statistics(Stream& stream, const SoftmaxStatistics& op) {
  const std::int64_t tokens = op.logits.rows();
  check_logits("softmax_statistics", op.logits);
  check_targets("softmax_statistics", op.targets, tokens);
  check_rows("softmax_statistics", "statistics", op.statistics, statistics_of(op.logits), {3, tokens});
  stream.count("softmax_statistics",
               {.flops = 3.0 * static_cast<double>(op.logits.elements()),
                .bytes = static_cast<double>(op.logits.bytes() + op.targets.bytes() + op.statistics.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::softmax_statistics(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::softmax_statistics(stream, op);
  }
}

void cross_entropy_of_part(Stream& stream, const CrossEntropyOfPart& op) {
  const std::int64_t tokens = op.logits.rows(), end = op.first + op.logits.cols();
  check_logits("cross_entropy_of_part", op.logits);
  check_targets("cross_entropy_of_part", op.targets, tokens);
  require(0 <= op.first && end <= op.vocabulary, "cross_entropy_of_part: columns [", op.first, ", ", end, ") of ", op.vocabulary);
  require(op.statistics.shape.rank() == 2 && op.statistics.rows() > 0 && op.statistics.rows() % 3 == 0,
          "cross_entropy_of_part: statistics must be [3 n, T], got ", op.statistics.shape);
  check_rows("cross_entropy_of_part", "statistics", op.statistics, statistics_of(op.logits), {op.statistics.rows(), tokens});
  check_rows("cross_entropy_of_part", "loss", op.loss, statistics_of(op.logits), {tokens});
  const bool writes = op.gradient == CrossEntropy::Gradient::in_place;
  stream.count("cross_entropy_of_part", {.flops = (writes ? 2.0 : 0.0) * static_cast<double>(op.logits.elements()),
                                         .bytes = static_cast<double>((writes ? 2 : 0) * op.logits.bytes() + op.targets.bytes() +
                                                                      op.statistics.bytes() + op.loss.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::cross_entropy_of_part(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::cross_entropy_of_part(stream, op);
  }
}

void loss_sum(Stream& stream, const LossSum& op) {
  require(op.loss.shape.rank() == 1 && op.loss.contiguous(), "loss_sum: loss must be [T], got ", op.loss.shape);
  check_targets("loss_sum", op.targets, op.loss.rows());
  require(op.total != nullptr, "loss_sum: no total");
  stream.count("loss_sum", {.flops = static_cast<double>(op.loss.elements()),
                            .bytes = static_cast<double>(op.loss.bytes() + op.targets.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::loss_sum(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::loss_sum(stream, op);
  }
}

}  // namespace octet::kernels
