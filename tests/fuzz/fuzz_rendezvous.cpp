// Sends any bytes to rank 0's server: first as a stranger, then as rank 0 of 1, after a true handshake. The server must close
// both connections. It sends a stranger nothing but its challenge and a refusal.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "octet/base/require.h"
#include "octet/comm/rendezvous_server.h"

namespace {

using namespace octet::comm;

void hold(bool holds) {
  if (!holds) std::abort();
}

// The server at a local socket without a place in the file system: thousands of connections a second would use up the ports.
class Place {
 public:
  explicit Place(const Token& token) {
    static int count = 0;
    address_.sun_family = AF_UNIX;
    const std::string name = octet::concat("octet fuzz ", ::getpid(), " ", ++count);
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    hold(::bind(listener.get(), address(), sizeof address_) == 0 && ::listen(listener.get(), 16) == 0);
    server_.emplace(std::move(listener), RendezvousServer::Options{.size = 1, .token = token, .version = "1"});
  }
  Connection connect() const {
    Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    hold(::connect(socket.get(), address(), sizeof address_) == 0);
    return Connection(std::move(socket));
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  sockaddr_un address_{};
  std::optional<RendezvousServer> server_;
};

// The next message, or nothing once the server has closed. Ends the program if neither comes within 10 s.
std::optional<Frame> next_frame(Connection& connection) {
  while (true) {
    if (auto frame = connection.next()) return frame;
    pollfd polled{connection.fd(), POLLIN, 0};
    int ready = -1;
    while (ready < 0) ready = ::poll(&polled, 1, 10000);  // libFuzzer's timer interrupts it
    hold(ready == 1);
    if (connection.receive()) continue;
    return connection.next();
  }
}

// Sends the bytes as they are and nothing after them. The server may close before it has read all.
void send_raw(Connection& connection, const std::uint8_t* data, std::size_t size) {
  while (connection.has_output() && connection.flush()) {
  }
  [[maybe_unused]] const ssize_t sent = ::send(connection.fd(), data, size, MSG_NOSIGNAL);
  connection.shut_sending();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Token token = Token::random();
  static const Place place_of_strangers(token);
  {
    Connection stranger = place_of_strangers.connect();
    hold(next_frame(stranger)->kind == Message::challenge);
    send_raw(stranger, data, size);
    const auto answer = next_frame(stranger);
    hold(!answer || (answer->kind == Message::refused && !next_frame(stranger)));
  }
  const Place place(token);
  Connection member = place.connect();
  const Challenge challenge(next_frame(member)->value);
  const Frame hello = challenge.hello(token, {.rank = 0, .size = 1, .version = "1"}, random_bytes(kNonceBytes), 1000);
  member.send(hello);
  hold(member.flush() && challenge.proves_server(token, hello, *next_frame(member)));
  hold(next_frame(member)->kind == Message::ready);
  send_raw(member, data, size);
  while (const auto frame = next_frame(member)) {
    hold(frame->kind == Message::value || frame->kind == Message::failed || frame->kind == Message::ping);
  }
  return 0;
}
