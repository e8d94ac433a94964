#pragma once

#include "octet/kernels/channel_amaxes/channel_amaxes.h"

namespace octet::kernels::cuda {

void channel_amaxes(Stream& stream, const ChannelAmaxes& op);

}  // namespace octet::kernels::cuda
