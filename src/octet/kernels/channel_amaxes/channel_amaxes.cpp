#include "octet/kernels/channel_amaxes/channel_amaxes.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/channel_amaxes/channel_amaxes_cpu.h"
#include "octet/kernels/channel_amaxes/channel_amaxes_cuda.h"

namespace octet::kernels {

void channel_amaxes(Stream& stream, const ChannelAmaxes& op) {
  require(op.x.shape.rank() == 2, "channel_amaxes: x must be [T, C], got ", op.x.shape);
  require(op.y.shape == Shape{op.x.shape[1]} && op.y.dtype == DType::f32, "channel_amaxes: y must be [", op.x.shape[1],
          "] F32, got ", op.y.shape, " ", name_of(op.y.dtype));
  stream.count("channel_amaxes", {.bytes = static_cast<double>(op.x.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::channel_amaxes(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::channel_amaxes(stream, op);
  }
}

}  // namespace octet::kernels
