#include "octet/kernels/dropout/dropout.h"

#include <algorithm>

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/dropout/dropout_cpu.h"
#include "octet/kernels/dropout/dropout_cuda.h"

namespace octet::kernels {

void dropout(Stream& stream, const Dropout& op) {
  require(op.x.shape.rank() == 2 && op.y.shape == op.x.shape && op.y.dtype == op.x.dtype, "dropout: x ", op.x.shape, " ",
          name_of(op.x.dtype), " to y ", op.y.shape, " ", name_of(op.y.dtype));
  require(op.rate >= 0 && op.rate < 1, "dropout: a rate of ", op.rate);
  require(op.tokens.dtype == DType::i32 && op.tokens.shape == Shape{op.x.rows()} && op.tokens.contiguous(),
          "dropout: tokens must be [", op.x.rows(), "] I32, got ", op.tokens.shape, " ", name_of(op.tokens.dtype));
  require(!op.groups || op.groups.rows() == op.x.rows(), "dropout: ", op.x.rows(), " rows, but ", op.groups.rows(), " in groups");
  const std::int64_t features = op.first_feature + op.x.cols();
  require(op.first_feature >= 0 && features <= std::int64_t{4} << kFeatureBits, "dropout: ", features, " features");
  const std::int64_t experts = op.first_expert + std::max<std::int64_t>(1, op.groups.size());
  require(op.first_expert >= 0 && experts <= std::int64_t{1} << (32 - kFeatureBits), "dropout: ", experts, " experts");
  const double bytes = static_cast<double>((op.adds ? 3 : 2) * op.x.bytes() + op.tokens.bytes());
  stream.count("dropout", {.bytes = bytes * op.groups.planned_share()});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::dropout(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::dropout(stream, op);
  }
}

}  // namespace octet::kernels
