// What the rendezvous needs of TCP: descriptors that are owned, listening, connecting, and waking a thread that polls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "octet/base/clock.h"

namespace octet::comm {

inline constexpr double kLongestWait = 1e6;  // seconds; more would not fit into what is sent or added up

inline Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(value, 0.0, kLongestWait)));
}
inline std::uint32_t milliseconds_of(double seconds) {
  return static_cast<std::uint32_t>(std::clamp(seconds, 0.0, kLongestWait) * 1e3);
}
// For poll: rounded up, so that the time has come when it returns.
int milliseconds_until(Clock::time_point time);

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_;
};

// Wakes a thread that polls fd().
class Wakeup {
 public:
  Wakeup();
  int fd() const { return event_.get(); }
  void poke() const;
  void clear() const;

 private:
  Descriptor event_;
};

// A listening socket that does not block. For a loopback host ("127.0.0.1", "::1", "localhost") it is there alone; for any
// other on all addresses, because a host's own name is often loopback on itself. Port 0: one that is free. Throws Error{peer}
// "WHO cannot listen at HOST port PORT: reason".
Descriptor listen_at(const std::string& host, int port, std::string_view who = "rank 0");
int port_of(const Descriptor& listener);
// The address by which the host of a listener reaches it.
std::string loopback_of(const Descriptor& listener);

// The next client of a listener, not blocking; not open when there is none.
Descriptor accept_from(const Descriptor& listener);

// Connects, trying every address of the host again and again until the deadline; what comes back does not block. Throws
// Error{peer} with the last reason.
Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline);

}  // namespace octet::comm
