// TCP for the rendezvous: listening, connecting, and waking a thread that polls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "octet/base/clock.h"
#include "octet/base/descriptor.h"

struct sockaddr;

namespace octet::comm {

inline constexpr double kLongestWait = 1e6;  // seconds; limits what is sent in milliseconds and added to times

inline Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(value, 0.0, kLongestWait)));
}
inline std::uint32_t milliseconds_of(double seconds) {
  return static_cast<std::uint32_t>(std::clamp(seconds, 0.0, kLongestWait) * 1e3);
}
// The timeout for poll(), rounded up so that `time` has passed when poll() returns.
int milliseconds_until(Clock::time_point time);

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

// Functions that take the name of a host ignore its loopback addresses if the name also has others, because no other machine
// can reach them.

// Returns a nonblocking listening socket at the first address of `host` that this machine has, and nowhere else. Port 0 selects
// a free port. Throws Error{peer} "WHO cannot listen at HOST port PORT: reason".
Descriptor listen_at(const std::string& host, int port, std::string_view who = "rank 0");
int port_of(const Descriptor& listener);
// "10.0.0.7" or "fd00::7"; "" for other kinds of addresses.
std::string text_of(const sockaddr* address);
// The socket's own address and that of its peer, such as "10.0.0.7" or "fd00::7".
std::string address_of(const Descriptor& socket);
std::string address_of_peer(const Descriptor& socket);

// Whether all addresses of `host` are loopback addresses, which no other machine can reach. False if it has no address.
bool is_loopback(const std::string& host);
// Throws Error{config} if `which` looks like a range of addresses but is not a valid one: "10.0.0.0/99".
void check_interface(const std::string& which);
// Returns the address of this machine on the interface `which`: the name of an interface ("eth0") or a range of addresses
// ("10.0.0.0/8"). IPv4 comes first. Throws Error{config} "comm.interface = WHICH: reason" with the addresses that exist.
std::string address_on(const std::string& which);

// Returns the address of this machine from which packets to `host` leave. Sends no packet. Throws Error{peer}.
std::string address_towards(const std::string& host);

// Accepts the next client of a listener as a nonblocking socket. The result is not open if no client is waiting.
Descriptor accept_from(const Descriptor& listener);

// Connects to a host and tries all its addresses repeatedly until the deadline. The result is a nonblocking socket. Throws
// Error{peer} with the reason of the last attempt.
Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline);

// Whether a machine answers at this port by the deadline. A refused connection is an answer, too.
bool answers(const std::string& host, int port, Clock::time_point deadline);

}  // namespace octet::comm
