#include "support/switch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet::testing {
namespace {

constexpr std::size_t kLongestFrame = 1 << 16;
constexpr double kLongestQueueS = 0.2;  // what comes to a slow link while as much waits for it is lost

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Switch::Switch(std::vector<Descriptor> ports)
    : ports_(std::move(ports)),
      ends_(::eventfd(0, EFD_CLOEXEC)),
      ways_(ports_.size() * ports_.size()),
      plugged_(ports_.size(), true),
      thread_(start_thread("the switch", [this] { run(); })) {}

Switch::~Switch() {
  const std::uint64_t one = 1;
  require(::write(ends_.get(), &one, sizeof one) == sizeof one, "a switch does not end");
  thread_.join();
}

void Switch::set_link(int from, int to, const Link& link) {
  const std::lock_guard lock(mutex_);
  way(from, to) = {.link = link};
}

void Switch::set_plugged(int port, bool plugged) {
  const std::lock_guard lock(mutex_);
  plugged_[static_cast<std::size_t>(port)] = plugged;
}

void Switch::run() {
  std::vector<pollfd> polled;
  for (const Descriptor& port : ports_) polled.push_back({.fd = port.get(), .events = POLLIN, .revents = 0});
  polled.push_back({.fd = ends_.get(), .events = POLLIN, .revents = 0});
  while (polled.back().revents == 0) {
    const auto wait = late_.empty() ? std::chrono::hours(1) : std::max(late_.begin()->first - Clock::now(), Clock::duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(wait);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(wait - seconds).count()};
    ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
    const std::lock_guard lock(mutex_);
    for (std::size_t port = 0; port < ports_.size(); ++port) {
      if (polled[port].revents != 0) read_from(static_cast<int>(port));
    }
    deliver_due();
  }
}

void Switch::read_from(int port) {
  constexpr int kAtOnce = 64;  // so that no host keeps the others waiting
  std::array<std::byte, kLongestFrame> frame;
  for (int count = 0; count < kAtOnce; ++count) {
    const ssize_t read = ::read(ports_[static_cast<std::size_t>(port)].get(), frame.data(), frame.size());
    if (read <= 0) return;
    constexpr std::size_t kLastOfDestination = 5;
    const bool to_all = (frame[0] & std::byte{1}) != std::byte{0};
    const int only = static_cast<int>(frame[kLastOfDestination]) - 1;
    for (int to = 0; to < static_cast<int>(ports_.size()); ++to) {
      if (to != port && (to_all || to == only)) send(port, to, frame.data(), static_cast<std::size_t>(read));
    }
  }
}

void Switch::send(int from, int to, const std::byte* bytes, std::size_t count) {
  if (!plugged_[static_cast<std::size_t>(from)] || !plugged_[static_cast<std::size_t>(to)]) return;
  Way& on = way(from, to);
  if (rng_.words(frames_++)[0] < on.link.loss * 0x1p32) return;
  if (on.link.delay_s == 0 && on.link.bytes_per_s == 0) return write_to(to, bytes, count);
  const Clock::time_point now = Clock::now();
  on.free = std::max(on.free, now);
  if (on.free - now > duration_of(kLongestQueueS)) return;
  if (on.link.bytes_per_s > 0) on.free += duration_of(static_cast<double>(count) / on.link.bytes_per_s);
  late_.emplace(on.free + duration_of(on.link.delay_s), Frame{.to = to, .bytes = {bytes, bytes + count}});
}

void Switch::deliver_due() {
  const Clock::time_point now = Clock::now();
  while (!late_.empty() && late_.begin()->first <= now) {
    const Frame& frame = late_.begin()->second;
    if (plugged_[static_cast<std::size_t>(frame.to)]) write_to(frame.to, frame.bytes.data(), frame.bytes.size());
    late_.erase(late_.begin());
  }
}

// A frame that the host does not take is lost, as on a cable.
void Switch::write_to(int port, const std::byte* bytes, std::size_t count) const {
  [[maybe_unused]] const ssize_t written = ::write(ports_[static_cast<std::size_t>(port)].get(), bytes, count);
}

}  // namespace octet::testing
