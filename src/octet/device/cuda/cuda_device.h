#pragma once

#include <memory>

#include "octet/device/device.h"

namespace octet {
std::unique_ptr<Device> make_cuda_device();
// Whether this build has the CUDA backend and this machine a GPU it can use.
bool cuda_is_available();
}  // namespace octet
