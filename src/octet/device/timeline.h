// When the named ranges of a step begin and end, on queues of the meta device that keep time.
#pragma once

#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet {

// A range that TraceRange names: from the start of its first op that takes time to the end of its last one. Seconds on the clock
// that the device's queues share.
struct TimedRange {
  const Queue* queue = nullptr;
  std::string name;
  double begin = 0, end = 0;
};
using Timeline = std::vector<TimedRange>;

// make_meta_device(target, seconds), whose queues also append to `timeline`, which outlives them. A range is appended when it
// ends.
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds, Timeline& timeline);

}  // namespace octet
