#include "support/step_record.h"

#include <algorithm>
#include <cstdint>

#include "octet/base/require.h"

namespace octet::testing {
namespace {

void merge(StreamClock& into, const StreamClock& other) {
  for (const auto& [stream, ops] : other) into[stream] = std::max(into[stream], ops);
}

struct RecordedEvent final : Event {
  explicit RecordedEvent(StreamClock at) : ended(std::move(at)) {}
  StreamClock ended;
};

}  // namespace

class RecordingStream final : public Stream {
 public:
  RecordingStream(Device& device, StepRecord& record)
      : Stream(device), record_(record), stream_(static_cast<int>(record.streams_.size())) {
    record_.streams_.push_back(this);
    record_.lines_[stream_];
    start_profile();  // which keeps the marks of all ops
  }
  // An engine's streams live as long as its record. A stream that ends earlier was made for a measurement, whose ops do not
  // count.
  ~RecordingStream() override {
    std::erase(record_.streams_, this);
    record_.lines_.erase(stream_);
  }
  std::unique_ptr<Event> record() override { return std::make_unique<RecordedEvent>(ended()); }
  void wait(const Event& event) override {
    write_ops();
    merge(known_, dynamic_cast<const RecordedEvent&>(event).ended);
  }
  void synchronize() override { merge(record_.host_, ended()); }
  void copy_to_device(void*, const void*, std::size_t bytes) override { count_bytes("copy to device", bytes); }
  void copy_to_host(void*, const void*, std::size_t bytes) override { count_bytes("copy to host", bytes); }
  void copy(void*, const void*, std::size_t bytes) override { count_bytes("copy", bytes); }
  void zero(void*, std::size_t bytes) override { count_bytes("zero", bytes); }

  // Writes the lines of ops that came since the last call. Ops learn of other streams only between two calls.
  void write_ops() {
    merge(known_, record_.host_);
    for (; written_ < marks().size(); ++written_) {
      const Mark& mark = marks()[written_];
      if (std::string_view(mark.op) == "wait for ranks") continue;
      std::string line = concat(++ops_, " ", mark.op);
      if (mark.work.shape[0] > 0) line += concat(" ", mark.work.shape[0], "x", mark.work.shape[1], "x", mark.work.shape[2]);
      line += concat(" ", static_cast<std::int64_t>(mark.work.bytes), " B");
      if (mark.work.flops > 0) line += concat(" ", static_cast<std::int64_t>(mark.work.flops), " FLOP");
      if (mark.work.fp8_flops > 0) line += " fp8";
      if (!mark.work.group.empty()) line += concat(" over ", mark.work.group);
      if (mark.work.joins) line += " joins";
      for (const auto& [stream, ops] : known_) {
        if (stream == stream_ || ops <= told_[stream]) continue;
        told_[stream] = ops;
        line += concat(" after ", stream, ":", ops);
      }
      record_.lines_[stream_].push_back(std::move(line));
    }
  }
  void heading(const std::string& text) {
    write_ops();
    record_.lines_[stream_].push_back("-- " + text);
  }

 protected:
  void stamp() override {}
  std::vector<double> take_stamps() override { return {}; }

 private:
  void count_bytes(const char* op, std::size_t bytes) { count(op, {.bytes = static_cast<double>(bytes)}); }
  // Returns the ops of each stream that must have ended when this stream has executed everything so far.
  StreamClock ended() {
    write_ops();
    StreamClock result = known_;
    result[stream_] = ops_;
    return result;
  }

  StepRecord& record_;
  const int stream_;
  std::size_t written_ = 0, ops_ = 0;
  StreamClock known_, told_;
};

namespace {

class RecordingDevice final : public Device {
 public:
  explicit RecordingDevice(StepRecord& record) : record_(record) {}
  DeviceKind kind() const override { return DeviceKind::meta; }
  DeviceKind target() const override { return DeviceKind::cuda; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<RecordingStream>(*this, record_); }

 protected:
  void* acquire(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += bytes + kAlignment;
    return reinterpret_cast<void*>(address);
  }
  void release(void*, std::size_t) override {}

 private:
  StepRecord& record_;
  std::uintptr_t next_ = std::uintptr_t{1} << 60;
};

}  // namespace

void StepRecord::heading(const std::string& text) {
  for (RecordingStream* stream : streams_) stream->heading(text);
}

std::string StepRecord::text() const {
  std::string result;
  for (RecordingStream* stream : streams_) stream->write_ops();
  for (const auto& [stream, lines] : lines_) {
    result += concat("stream ", stream, "\n");
    for (const std::string& line : lines) result += concat("  ", line, "\n");
  }
  return result;
}

std::unique_ptr<Device> make_recording_device(StepRecord& record) { return std::make_unique<RecordingDevice>(record); }

}  // namespace octet::testing
