// The largest magnitude of each channel, for health samples.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y[c] = max over t of |x[t, c]|, 0 without rows. NaN is left out. F32 is rounded to BF16 first, as it is before a cast to FP8.
struct ChannelAmaxes {
  Tensor x;  // [T, C] BF16 or F32, on the CPU also F64; rows may be strided
  Tensor y;  // [C] F32, overwritten
};
void channel_amaxes(Stream& stream, const ChannelAmaxes& op);

}  // namespace octet::kernels
