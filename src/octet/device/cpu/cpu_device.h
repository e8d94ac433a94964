#pragma once

#include <memory>

#include "octet/device/device.h"

namespace octet {
std::unique_ptr<Device> make_cpu_device();
}  // namespace octet
