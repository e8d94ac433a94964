#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::train {

inline constexpr const char* kVersion = "0.1.0";

// "AMD EPYC 9654 96-Core Processor", as the system calls it.
std::string device_name(DeviceKind device);

}  // namespace octet::train
