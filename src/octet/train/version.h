#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::train {

inline constexpr const char* kVersion = "0.1.0";

// "AMD EPYC 9654 96-Core Processor", "NVIDIA H200": as the system calls it; of a GPU the first, on which this takes memory.
std::string device_name(DeviceKind device);

}  // namespace octet::train
