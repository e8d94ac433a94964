#pragma once

#include "octet/kernels/channel_amaxes/channel_amaxes.h"

namespace octet::kernels::cpu {

void channel_amaxes(const ChannelAmaxes& op);

}  // namespace octet::kernels::cpu
