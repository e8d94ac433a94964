#include <algorithm>

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/elementwise/elementwise_cpu.h"
#include "octet/kernels/elementwise/elementwise_cuda.h"

namespace octet::kernels {

void sum_parts(Stream& stream, const SumParts& op) {
  const auto check = [&](const Tensor& x, const char* name) {
    require(x.shape == op.y.shape && x.dtype == op.y.dtype && x.contiguous(), "sum_parts: ", name, " is ", name_of(x.dtype), " ",
            x.shape, ", y is ", name_of(op.y.dtype), " ", op.y.shape);
  };
  require(!op.parts.empty() && op.parts.size() <= kMostParts, "sum_parts: ", op.parts.size(), " parts");
  check(op.y, "y");
  for (const Tensor& part : op.parts) check(part, "a part");
  if (op.residual) check(op.residual, "the residual");
  const std::size_t read = op.parts.size() + (op.residual ? 1 : 0);
  stream.count("sum_parts", {.bytes = static_cast<double>((read + 1) * op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::sum_parts(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::sum_parts(stream, op);
  }
}

}  // namespace octet::kernels
