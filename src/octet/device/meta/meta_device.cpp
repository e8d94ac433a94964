// Addresses on the meta device must not be dereferenced. Copies and zeroing do nothing.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "octet/device/timeline.h"

namespace octet {
namespace {

class MetaStream : public Stream {
 public:
  using Stream::Stream;
  std::unique_ptr<Event> record() override { return std::make_unique<Event>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy_to_host(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void zero(void*, std::size_t) override {}

 protected:
  void stamp() override { ++stamps_; }
  std::vector<double> take_stamps() override { return std::vector<double>(std::exchange(stamps_, 0)); }

 private:
  std::size_t stamps_ = 0;
};

class TimedEvent final : public Event {
 public:
  explicit TimedEvent(double seconds) : seconds_(seconds) {}
  double seconds() const override { return seconds_; }

 private:
  double seconds_;
};

// Computes the times of ops only when a time is asked for. Copies and zeroing count as ops here.
class TimedStream final : public MetaStream {
 public:
  TimedStream(Device& device, const OpSeconds& seconds, Timeline* timeline)
      : MetaStream(device), seconds_(seconds), timeline_(timeline) {}
  std::unique_ptr<Event> record() override { return std::make_unique<TimedEvent>(run() + waited_); }
  void copy(void*, const void*, std::size_t bytes) override { count("copy", {.bytes = 2.0 * static_cast<double>(bytes)}); }
  void zero(void*, std::size_t bytes) override { count("zero", {.bytes = static_cast<double>(bytes)}); }
  void wait(const Event& event) override { waited_ = std::max(waited_, event.seconds() - run()); }
  void begin_range(const std::string& name) override {
    if (!timeline_) return;
    run();
    open_.push_back({.stream = this, .name = name, .begin = -1});
  }
  void end_range() override {
    if (!timeline_) return;
    const double end = run() + waited_;
    if (open_.back().begin >= 0) {
      open_.back().end = end;
      timeline_->push_back(std::move(open_.back()));
    }
    open_.pop_back();
  }

 protected:
  void stamp() override { stamps_.push_back(run()); }
  std::vector<double> take_stamps() override {
    run();
    done_ = 0;
    return std::exchange(stamps_, {});
  }

 private:
  double run() {
    for (; done_ < marks().size(); ++done_) {
      const double seconds = seconds_(marks()[done_].op, marks()[done_].work);
      for (TimedRange& range : open_) {
        if (range.begin < 0 && seconds > 0) range.begin = busy_ + waited_;
      }
      busy_ += seconds;
    }
    return busy_;
  }

  const OpSeconds& seconds_;
  Timeline* timeline_;
  std::vector<TimedRange> open_;  // ranges that have not ended; begin is -1 until an op takes time
  double busy_ = 0, waited_ = 0;
  std::size_t done_ = 0;
  std::vector<double> stamps_;
};

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(DeviceKind target, OpSeconds seconds = {}, Timeline* timeline = nullptr)
      : target_(target), seconds_(std::move(seconds)), timeline_(timeline) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  DeviceKind target() const override { return target_; }
  std::unique_ptr<Stream> make_stream() override {
    if (seconds_) return std::make_unique<TimedStream>(*this, seconds_, timeline_);
    return std::make_unique<MetaStream>(*this);
  }

 protected:
  // Each allocation gets an address outside the range that a process can map, so that an accidental access faults.
  void* acquire(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += bytes + kAlignment;
    return reinterpret_cast<void*>(address);
  }
  void release(void*, std::size_t) override {}

 private:
  DeviceKind target_;
  OpSeconds seconds_;
  Timeline* timeline_;
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(DeviceKind target) { return std::make_unique<MetaDevice>(target); }
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds) {
  return std::make_unique<MetaDevice>(target, std::move(seconds));
}
std::unique_ptr<Device> make_meta_device(DeviceKind target, OpSeconds seconds, Timeline& timeline) {
  return std::make_unique<MetaDevice>(target, std::move(seconds), &timeline);
}

}  // namespace octet
