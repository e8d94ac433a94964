// Checks this program's FP8 casts on this processor against a slow reference that shares no code with them.
#pragma once

#include <cstdint>
#include <string>

#include "octet/device/device.h"

namespace octet::app {

struct SelfTest {
  std::int64_t checks = 0;
  std::string failure;  // the first, with its values; "" when all is well
};

// Every code of E4M3, E5M2 and E8M0 decoded; every BF16 value cast, alone and by the device's kernel; subnormals kept.
SelfTest fp8_self_test(DeviceKind device);

}  // namespace octet::app
