#include "octet/comm/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "octet/base/system_call.h"

namespace octet::comm {
namespace {

struct Addresses {
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner;
  std::vector<const addrinfo*> list;
};

// The bytes of an IPv4 or IPv6 address, in network order; none for other addresses.
std::vector<unsigned char> bytes_of(const sockaddr* address) {
  const auto copy = [](const auto& bytes) {
    const auto* begin = reinterpret_cast<const unsigned char*>(&bytes);
    return std::vector<unsigned char>(begin, begin + sizeof bytes);
  };
  if (address->sa_family == AF_INET) return copy(reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  if (address->sa_family == AF_INET6) return copy(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return {};
}

bool is_loopback(const sockaddr* address) {
  const std::vector<unsigned char> bytes = bytes_of(address);
  if (address->sa_family == AF_INET) return bytes[0] == 127;
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Returns no addresses and a reason if the name cannot be resolved, which may be temporary. Leaves loopback addresses out if the
// name has others: on Debian /etc/hosts gives a machine's own name 127.0.1.1, which no other machine can reach.
Addresses resolve(const std::string& host, int port, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(port);
  int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  // A machine without /etc/hosts does not know its own name for itself. No name at all means the loopback addresses.
  if (error != 0 && ::strcasecmp(host.c_str(), "localhost") == 0) error = ::getaddrinfo(nullptr, service.c_str(), &hints, &found);
  if (error != 0) reason = ::gai_strerror(error);
  Addresses addresses{{error == 0 ? found : nullptr, &::freeaddrinfo}, {}};
  for (const addrinfo* a = addresses.owner.get(); a; a = a->ai_next) addresses.list.push_back(a);
  const auto leads_here = [](const addrinfo* a) { return is_loopback(a->ai_addr); };
  if (!std::all_of(addresses.list.begin(), addresses.list.end(), leads_here)) std::erase_if(addresses.list, leads_here);
  return addresses;
}

void set_option(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); }

using Address = sockaddr_storage;

template <class Query>
Address queried(Query query, const Descriptor& socket, const char* name) {
  Address address{};
  socklen_t length = sizeof(address);
  if (query(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) fail_errno(ExitCode::peer, name);
  return address;
}

Address own_address(const Descriptor& socket) { return queried(::getsockname, socket, "getsockname"); }

using comm::text_of;

std::string text_of(const Address& address) { return text_of(reinterpret_cast<const sockaddr*>(&address)); }

// "10.0.0.0/8" as an address and a number of bits. Throws Error{config}.
struct Range {
  std::vector<unsigned char> bytes;
  std::size_t bits = 0;

  explicit Range(const std::string& text) {
    const std::size_t slash = text.find('/');
    const std::string address = text.substr(0, slash), length = text.substr(slash + 1);
    const int family = address.find(':') == address.npos ? AF_INET : AF_INET6;
    bytes.resize(family == AF_INET ? 4 : 16);
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bits);
    const bool number = error == std::errc() && end == length.data() + length.size();
    demand(number && bits <= 8 * bytes.size() && ::inet_pton(family, address.c_str(), bytes.data()) == 1, ExitCode::config,
           "comm.interface = ", text, ": must be the name of an interface or a range of addresses such as 10.0.0.0/8");
  }
  bool contains(const std::vector<unsigned char>& other) const {
    if (other.size() != bytes.size()) return false;
    for (std::size_t bit = 0; bit < bits; ++bit) {
      const unsigned char mask = static_cast<unsigned char>(0x80 >> bit % 8);
      if ((bytes[bit / 8] & mask) != (other[bit / 8] & mask)) return false;
    }
    return true;
  }
};

// Returns no range if `which` is the name of an interface.
std::optional<Range> range_of(const std::string& which) {
  return which.find('/') != which.npos ? std::optional<Range>(which) : std::nullopt;
}

// If nothing listens at a port, the system may assign this very port to the connecting socket, and TCP connects it to itself.
bool is_connected_to_itself(const Descriptor& socket) {
  const Address own = own_address(socket);
  Address peer{};
  socklen_t length = sizeof(peer);
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &length) == 0 && std::memcmp(&own, &peer, length) == 0;
}

// On failure the result is not open and errno has the reason.
Descriptor listen_on(int family, const sockaddr* address, socklen_t length) {
  Descriptor listener(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.open()) return listener;
  set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // allows the port of a run that has just ended
  if (::bind(listener.get(), address, length) != 0 || ::listen(listener.get(), SOMAXCONN) != 0) {
    const int reason = errno;
    listener.close();
    errno = reason;
  }
  return listener;
}

// If it cannot connect by the deadline, the result is not open and errno has the reason.
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

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(address->sa_family, bytes_of(address).data(), text, sizeof(text));
  return text;
}

int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

Wakeup::Wakeup() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_.open()) fail_errno(ExitCode::internal, "cannot make an eventfd");
}

void Wakeup::poke() const { ::eventfd_write(event_.get(), 1); }

void Wakeup::clear() const {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

Descriptor listen_at(const std::string& host, int port, std::string_view who) {
  Descriptor listener;
  std::string reason;
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* a : addresses.list) {
    listener = listen_on(a->ai_family, a->ai_addr, a->ai_addrlen);
    if (listener.open()) break;
    reason = errno == EADDRNOTAVAIL ? "this machine does not have that address" : std::strerror(errno);
  }
  demand(listener.open(), ExitCode::peer, who, " cannot listen at ", host, " port ", port, ": ", reason);
  return listener;
}

int port_of(const Descriptor& listener) {
  const Address address = own_address(listener);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string address_of(const Descriptor& socket) { return text_of(own_address(socket)); }

std::string address_of_peer(const Descriptor& socket) {
  Address address{};
  socklen_t length = sizeof(address);
  // Fails if the peer has already gone. All such peers share one place.
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return "a closed socket";
  return text_of(address);
}

bool is_loopback(const std::string& host) {
  std::string reason;
  const Addresses addresses = resolve(host, 0, reason);
  const auto& list = addresses.list;
  return !list.empty() && is_loopback(list.front()->ai_addr);  // then all are: resolve() never mixes them with others
}

void check_interface(const std::string& which) { range_of(which); }

std::string address_on(const std::string& which) {
  const std::optional<Range> range = range_of(which);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) fail_errno(ExitCode::internal, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, &::freeifaddrs);
  std::string there;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = interfaces.get(); i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) continue;
      // An address that holds on one link only would have to be written with its interface.
      const std::vector<unsigned char> bytes = bytes_of(i->ifa_addr);
      if (family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) continue;
      if (range ? range->contains(bytes) : which == i->ifa_name) return text_of(i->ifa_addr);
      there += concat(there.empty() ? "" : ", ", i->ifa_name, " ", text_of(i->ifa_addr));
    }
  }
  fail(ExitCode::config, "comm.interface = ", which, ": this machine has no such ", range ? "address" : "interface", ", only ",
       there);
}

std::string address_towards(const std::string& host) {
  std::string reason;
  const Addresses addresses = resolve(host, 9, reason);
  for (const addrinfo* a : addresses.list) {
    const Descriptor socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.open() && ::connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0) return address_of(socket);
    reason = std::strerror(errno);
  }
  fail(ExitCode::peer, "no way leads to ", host, ": ", reason);
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
    for (const addrinfo* a : addresses.list) {
      // An address that drops packets must not prevent the other addresses from being tried.
      Descriptor socket = connect_once(*a, std::min(deadline, Clock::now() + seconds(5)));
      if (socket.open()) return socket;
      reason = std::strerror(errno);
    }
    const auto now = Clock::now();
    demand(now < deadline, ExitCode::peer, reason);
    std::this_thread::sleep_for(std::min(pause, deadline - now));
  }
}

bool answers(const std::string& host, int port, Clock::time_point deadline) {
  std::string reason;
  const Addresses addresses = resolve(host, port, reason);
  for (const addrinfo* a : addresses.list) {
    const Descriptor socket = connect_once(*a, deadline);
    if (socket.open() || errno == ECONNREFUSED) return true;
  }
  return false;
}

}  // namespace octet::comm
