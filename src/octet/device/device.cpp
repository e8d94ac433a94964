#include "octet/device/device.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/device/cpu/cpu_device.h"
#include "octet/device/cuda/cuda_device.h"

namespace octet {

std::string_view name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
    case DeviceKind::meta:
      return "meta";
  }
  return "?";
}

std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> names = {"weights",     "master weights", "moments", "gradients",
                                                                     "activations", "workspace",      "state",   "host"};
  return names[static_cast<std::size_t>(category)];
}

void MemoryMeter::add(MemoryCategory category, std::size_t amount) {
  const auto i = static_cast<std::size_t>(category);
  bytes[i] += amount;
  if (category != MemoryCategory::host) total += amount;
  peak[i] = std::max(peak[i], bytes[i]);
  total_peak = std::max(total_peak, total);
  ++allocations;
}

void MemoryMeter::remove(MemoryCategory category, std::size_t amount) {
  bytes[static_cast<std::size_t>(category)] -= amount;
  if (category != MemoryCategory::host) total -= amount;
}

Buffer Device::allocate(std::size_t bytes, MemoryCategory category) {
  const std::size_t rounded = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), kAlignment));
  void* data = category == MemoryCategory::host ? acquire_host(rounded) : acquire(rounded);
  memory_->add(category, rounded);
  return {*this, data, rounded, category};
}

Buffer::~Buffer() {
  if (!device_) return;
  device_->memory_->remove(category_, bytes_);
  if (category_ == MemoryCategory::host) {
    device_->release_host(data_, bytes_);
  } else {
    device_->release(data_, bytes_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(category_, other.category_);
  return *this;
}

void Stream::call(std::function<void()>) { fail(ExitCode::internal, "a stream of ", name_of(kind()), " calls a function"); }

void Stream::start_profile() {
  require(!waits_, "cannot start a profile while waits are measured");
  synchronize();
  take_stamps();
  marks_.clear();
  profile_ = true;
}

void Stream::mark(const char* op, const Work& work) {
  stamp();
  marks_.push_back({op, work});
}

std::vector<OpTime> Stream::take_profile() {
  stamp();  // the end of the last op
  profile_ = false;
  synchronize();
  const std::vector<double> seconds = take_stamps();
  std::vector<OpTime> result;
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const Mark& m = marks_[i];
    const auto same = [&](const OpTime& t) {
      return std::string_view(t.op) == m.op && t.work.shape == m.work.shape && t.work.group == m.work.group;
    };
    auto found = std::find_if(result.begin(), result.end(), same);
    if (found == result.end())
      found = result.insert(result.end(), {.op = m.op, .work = {.shape = m.work.shape, .group = m.work.group}});
    found->work += m.work;
    ++found->calls;
    found->seconds += seconds[i + 1] - seconds[i];
  }
  marks_.clear();
  return result;
}

void Stream::start_waits() {
  require(!profile_, "cannot measure waits during a profile");
  take_stamps();
  wait_is_for_stages_.clear();
  waits_ = true;
  depth_ = 0;
}

Waits Stream::take_waits() {
  waits_ = false;
  synchronize();
  const std::vector<double> seconds = take_stamps();
  Waits sum;
  for (std::size_t i = 0; i + 1 < seconds.size(); i += 2) {
    const double wait = seconds[i + 1] - seconds[i];
    sum.all += wait;
    if (wait_is_for_stages_[i / 2]) sum.stages += wait;
  }
  return sum;
}

std::unique_ptr<Device> make_device(DeviceKind kind, int index) {
  switch (kind) {
    case DeviceKind::cpu:
      return make_cpu_device();
    case DeviceKind::cuda:
      return make_cuda_device(index);
    case DeviceKind::meta:
      return make_meta_device(DeviceKind::cpu);
  }
  fail(ExitCode::internal, "unknown device kind");
}

}  // namespace octet
