// Records everything that an engine enqueues on the meta device, so that two versions of the program can be compared op by op.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet::testing {

// For each stream, the number of its ops that must have ended.
using StreamClock = std::map<int, std::size_t>;

// Holds what one rank enqueued. A stream is the number of a stream in the order in which the engine makes them.
class StepRecord {
 public:
  // Returns a line for each op, stream by stream: name, shape, bytes, FLOPs and group, and "after 1:20" if this is the first op
  // of its stream that follows op 20 of stream 1. Copies and zeroing count as ops. Numbers begin at 1.
  std::string text() const;
  // Adds a line to all streams. Ops after it are compared apart from ops before it.
  void heading(const std::string& text);

 private:
  friend class RecordingStream;
  std::map<int, std::vector<std::string>> lines_;
  std::vector<class RecordingStream*> streams_;
  StreamClock host_;  // what the host has waited for
};

// Makes a meta device that stands for CUDA and whose streams write to `record`, which must outlive it.
std::unique_ptr<Device> make_recording_device(StepRecord& record);

}  // namespace octet::testing
