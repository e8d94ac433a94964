#pragma once

#include <string>

#include "octet/device/device.h"

namespace octet::train {

inline constexpr const char* kVersion = "0.1.0";

// Devices and processor that this program was compiled for: "CPU, native", "CUDA 90a-real and CPU, x86-64-v3".
const char* build_name();

// "AMD EPYC 9654 96-Core Processor", "NVIDIA H200": as the system calls it; of a GPU the first, on which this takes memory.
std::string device_name(DeviceKind device);

}  // namespace octet::train
