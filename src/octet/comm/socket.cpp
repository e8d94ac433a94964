#include "octet/comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "octet/base/require.h"

namespace octet::comm {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Null with a reason when the name is unknown, perhaps only as yet.
Addresses resolve(const std::string& host, int port, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) reason = ::gai_strerror(error);
  return {error == 0 ? found : nullptr, &::freeaddrinfo};
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); }

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.compare(0, 4, "127.") == 0; }

sockaddr_storage address_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  require(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
          "getsockname: ", std::strerror(errno));
  return address;
}

// Where nobody listens, the system may give the connecting socket the very port that it connects to: TCP then joins it to itself.
bool is_connected_to_itself(const Descriptor& socket) {
  const sockaddr_storage own = address_of(socket);
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &length) == 0 && std::memcmp(&own, &peer, length) == 0;
}

// Not open, and the reason in errno, when it cannot.
Descriptor listen_on(int family, const sockaddr* address, socklen_t length) {
  Descriptor listener(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.open()) return listener;
  set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // the port of a run that has just ended
  if (family == AF_INET6) set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(listener.get(), address, length) != 0 || ::listen(listener.get(), SOMAXCONN) != 0) {
    const int reason = errno;
    listener.close();
    errno = reason;
  }
  return listener;
}

// Not open, and the reason in errno, when it cannot by the deadline.
Descriptor connect_once(const addrinfo& address, Clock::time_point deadline) {
  Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return socket;
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  int reason = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (reason == EINPROGRESS || reason == EINTR) {
    pollfd polled{socket.get(), POLLOUT, 0};
    int ready = 0;
    do ready = ::poll(&polled, 1, milliseconds_until(deadline));
    while (ready < 0 && errno == EINTR);
    socklen_t length = sizeof(reason);
    if (ready <= 0)
      reason = ETIMEDOUT;
    else
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &reason, &length);
  }
  if (reason == 0 && is_connected_to_itself(socket)) reason = ECONNREFUSED;
  if (reason != 0) socket.close();
  errno = reason;
  return socket;
}

}  // namespace

int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Wakeup::Wakeup() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  demand(event_.open(), ExitCode::internal, "cannot make an eventfd: ", std::strerror(errno));
}

void Wakeup::poke() const { ::eventfd_write(event_.get(), 1); }

void Wakeup::clear() const {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

Descriptor listen_at(const std::string& host, int port, std::string_view who) {
  Descriptor listener;
  std::string reason;
  if (is_loopback(host)) {
    const Addresses addresses = resolve(host, port, reason);
    for (const addrinfo* a = addresses.get(); a && !listener.open(); a = a->ai_next) {
      listener = listen_on(a->ai_family, a->ai_addr, a->ai_addrlen);
      if (!listener.open()) reason = std::strerror(errno);
    }
  } else {
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(port));
    listener = listen_on(AF_INET6, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6));
    if (!listener.open() && errno != EADDRINUSE) {  // a host without IPv6
      sockaddr_in any4{};
      any4.sin_family = AF_INET;
      any4.sin_port = htons(static_cast<std::uint16_t>(port));
      listener = listen_on(AF_INET, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4));
    }
    if (!listener.open()) reason = std::strerror(errno);
  }
  demand(listener.open(), ExitCode::peer, who, " cannot listen at ", host, " port ", port, ": ", reason);
  return listener;
}

int port_of(const Descriptor& listener) {
  const sockaddr_storage address = address_of(listener);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string loopback_of(const Descriptor& listener) {
  const sockaddr_storage address = address_of(listener);
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(&host) ? "127.0.0.1" : ::inet_ntop(AF_INET6, &host, text, sizeof(text));
  }
  const in_addr& host = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return host.s_addr == htonl(INADDR_ANY) ? "127.0.0.1" : ::inet_ntop(AF_INET, &host, text, sizeof(text));
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (client.open()) set_option(client.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  return client;
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline) {
  std::string reason;
  for (auto pause = seconds(0.02);; pause = std::min(pause * 2, seconds(0.5))) {
    const Addresses addresses = resolve(host, port, reason);
    for (const addrinfo* a = addresses.get(); a; a = a->ai_next) {
      // An address that swallows what is sent to it must not keep the others from being tried.
      Descriptor socket = connect_once(*a, std::min(deadline, Clock::now() + seconds(5)));
      if (socket.open()) return socket;
      reason = std::strerror(errno);
    }
    const auto now = Clock::now();
    demand(now < deadline, ExitCode::peer, reason);
    std::this_thread::sleep_for(std::min(pause, deadline - now));
  }
}

}  // namespace octet::comm
