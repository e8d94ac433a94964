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

// Decodes every code of E4M3, E5M2 and E8M0, and casts every BF16 value, alone and by the device's kernel. Checks that
// subnormals are kept.
SelfTest fp8_self_test(DeviceKind device);

}  // namespace octet::app
