// A device that records the order in which work is enqueued and, for each piece of work, what must have ended before it begins.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet::testing {

using Log = std::vector<std::string>;

// The named ranges in the order in which they were enqueued. ended[i] holds the indices of the ranges that are certain to have
// ended when range i begins, however slow each stream is.
struct Trace {
  Log log;
  std::vector<std::set<std::size_t>> ended;

  // Returns the index of the last entry before entry i whose name is in `names`, or the number of entries if there is none.
  std::size_t last(std::size_t i, const std::set<std::string>& names) const {
    while (i-- > 0) {
      if (names.contains(log[i])) return i;
    }
    return log.size();
  }
};

struct Moment final : Event {
  std::set<std::size_t> ended;
};

class LoggingStream final : public Stream {
 public:
  LoggingStream(Device& device, Trace& trace) : Stream(device), trace_(trace) {}
  std::unique_ptr<Event> record() override {
    auto moment = std::make_unique<Moment>();
    moment->ended = ended_;
    return moment;
  }
  void wait(const Event& event) override {
    const auto& ended = dynamic_cast<const Moment&>(event).ended;
    ended_.insert(ended.begin(), ended.end());
  }
  void synchronize() override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}
  void begin_range(const std::string& name) override {
    ended_.insert(trace_.log.size());
    trace_.log.push_back(name);
    trace_.ended.push_back(ended_);
  }

 protected:
  void stamp() override {}
  std::vector<double> take_stamps() override { return {}; }

 private:
  Trace& trace_;
  std::set<std::size_t> ended_;  // ranges that this stream has enqueued or waited for
};

class LoggingDevice final : public Device {
 public:
  explicit LoggingDevice(Trace& trace) : trace_(trace) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<LoggingStream>(*this, trace_); }

 protected:
  void* acquire(std::size_t) override { return reinterpret_cast<void*>(std::uintptr_t{1} << 40); }
  void release(void*, std::size_t) override {}

 private:
  Trace& trace_;
};

}  // namespace octet::testing
