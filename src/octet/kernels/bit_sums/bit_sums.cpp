#include "octet/kernels/bit_sums/bit_sums.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/bit_sums/bit_sums_cpu.h"
#include "octet/kernels/bit_sums/bit_sums_cuda.h"

namespace octet::kernels {

void bit_sums(Stream& stream, const BitSums& op) {
  const std::size_t bytes = op.x.tensors().size() * sizeof(std::uint64_t);
  if (bytes == 0) return;
  stream.count("bit_sums", {.bytes = op.x.bytes() + static_cast<double>(bytes)});
  if (stream.kind() == DeviceKind::meta) return;
  require(op.sums != nullptr, "bit_sums: no sums");
  stream.zero(op.sums, bytes);
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::bit_sums(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::bit_sums(stream, op);
  }
}

}  // namespace octet::kernels
