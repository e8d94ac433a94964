#pragma once

#include <memory>

#include "octet/device/device.h"

namespace octet {
// Addresses are numbers that nobody may follow; copies and zeros do nothing.
std::unique_ptr<Device> make_meta_device();
}  // namespace octet
