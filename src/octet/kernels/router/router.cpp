#include "octet/kernels/router/router.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/router/router_cpu.h"
#include "octet/kernels/router/router_cuda.h"

namespace octet::kernels {
namespace {

void check_logits(const char* name, const Tensor& logits) {
  require(logits.shape.rank() == 2 && logits.contiguous(), name, ": logits must be [T, E] without gaps, got ", logits.shape);
  require(logits.dtype == DType::f32 || logits.dtype == DType::f64, name, ": logits are ", name_of(logits.dtype),
          ", not F32 or F64");
}

void check_choice(const char* name, const char* what, const Tensor& x, DType dtype, const Tensor& logits, std::int64_t k) {
  require(x.dtype == dtype && x.shape == Shape({logits.rows(), k}) && x.contiguous(), name, ": ", what, " must be [",
          logits.rows(), ", ", k, "] ", name_of(dtype), " without gaps, got ", x.shape, " ", name_of(x.dtype));
}

void check_statistics(const char* name, const Tensor& statistics, const Tensor& logits) {
  require(statistics.shape.rank() == 2 && statistics.cols() == 2 * logits.cols() + 1 && statistics.dtype == logits.dtype &&
              statistics.contiguous() && statistics.rows() > 0 && logits.rows() % statistics.rows() == 0,
          name, ": statistics of ", logits.shape, " logits must be [B, ", 2 * logits.cols() + 1, "] of their dtype, got ",
          statistics.shape);
}

void check_bias(const char* name, const Tensor& bias, std::int64_t experts) {
  require(bias.dtype == DType::f32 && bias.shape == Shape({experts}), name, ": a bias must be F32 [", experts, "], got ",
          name_of(bias.dtype), " ", bias.shape);
}

void check_counted(const char* name, const Tensor& counted, const Tensor& statistics) {
  require(!counted || (counted.dtype == DType::i32 && counted.shape == Shape({statistics.rows()})), name,
          ": counted must be I32 [", statistics.rows(), "], got ", name_of(counted.dtype), " ", counted.shape);
}

}  // namespace

void router_forward(Stream& stream, Arena& scratch, const RouterForward& op) {
  constexpr const char* kName = "router_forward";
  check_logits(kName, op.logits);
  const std::int64_t k = op.experts.cols();
  require(0 < k && k <= op.logits.cols(), kName, ": ", k, " experts a token, of ", op.logits.cols());
  check_choice(kName, "experts", op.experts, DType::i32, op.logits, k);
  check_choice(kName, "weights", op.weights, op.logits.dtype, op.logits, k);
  check_statistics(kName, op.statistics, op.logits);
  if (op.bias) check_bias(kName, op.bias, op.logits.cols());
  const ArenaScope scope(scratch);
  void* const lse = scratch.allocate(static_cast<std::size_t>(op.logits.rows()) * sizeof(double));
  stream.count(kName, {.bytes = static_cast<double>(2 * op.logits.bytes() + op.experts.bytes() + op.weights.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::router_forward(op, static_cast<double*>(lse)); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::router_forward(stream, op, static_cast<float*>(lse));
  }
}

void router_losses(Stream& stream, const RouterLosses& op) {
  require(op.statistics.shape.rank() == 2 && op.statistics.cols() % 2 == 1 && op.statistics.contiguous(),
          "router_losses: statistics must be [B, 2E + 1], got ", op.statistics.shape);
  require(op.seq_len > 0 && op.total && op.loads, "router_losses: sequences of ", op.seq_len, " tokens");
  check_counted("router_losses", op.counted, op.statistics);
  stream.count("router_losses", {.bytes = static_cast<double>(op.statistics.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::router_losses(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::router_losses(stream, op);
  }
}

void update_router_bias(Stream& stream, const RouterBiasUpdate& op) {
  check_bias("update_router_bias", op.bias, op.bias.elements());
  require(op.loads && op.found_inf, "update_router_bias: needs loads and found_inf");
  stream.count("update_router_bias", {.bytes = static_cast<double>(2 * op.bias.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::update_router_bias(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::update_router_bias(stream, op);
  }
}

void router_backward(Stream& stream, const RouterBackward& op) {
  constexpr const char* kName = "router_backward";
  check_logits(kName, op.logits);
  const std::int64_t k = op.experts.cols();
  check_choice(kName, "experts", op.experts, DType::i32, op.logits, k);
  check_choice(kName, "weights", op.weights, op.logits.dtype, op.logits, k);
  check_choice(kName, "gweights", op.gweights, op.logits.dtype, op.logits, k);
  check_choice(kName, "glogits", op.glogits, op.logits.dtype, op.logits, op.logits.cols());
  if (op.statistics) {
    check_statistics(kName, op.statistics, op.logits);
    require(op.seq_len > 0, kName, ": sequences of ", op.seq_len, " tokens");
    check_counted(kName, op.counted, op.statistics);
  }
  stream.count(kName, {.bytes = static_cast<double>(2 * op.logits.bytes() + op.experts.bytes() + 2 * op.weights.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::router_backward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::router_backward(stream, op);
  }
}

}  // namespace octet::kernels
