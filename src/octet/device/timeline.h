// The times at which the named ranges of a step begin and end, on streams of the meta device that simulate time.
#pragma once

#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet {

// A range that TraceRange names. It lasts from the start of its first op that takes time to the end of its last op. Times are in
// seconds on the clock that the device's streams share.
struct TimedRange {
  const Stream* stream = nullptr;
  std::string name;
  double begin = 0, end = 0;
};
using Timeline = std::vector<TimedRange>;

// Like make_meta_device(target, seconds), but its streams also append each range to `timeline` when the range ends. `timeline`
// must outlive the streams.
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds, Timeline& timeline);

}  // namespace octet
