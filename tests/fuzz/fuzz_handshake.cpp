// Gives any bytes to a connection of the rendezvous, as a stranger on the network may send them. The connection must find the
// same messages in whatever pieces the bytes arrive, and must write them as they came. None of them may prove that its sender
// knows the token.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/require.h"
#include "octet/comm/handshake.h"

namespace {

using namespace octet::comm;

void hold(bool holds) {
  if (!holds) std::abort();
}

// Returns false if `act` throws Error{peer}. Any other exception ends the program.
template <class F>
bool succeeds(const F& act) {
  try {
    act();
    return true;
  } catch (const octet::Error& error) {
    hold(error.code() == octet::ExitCode::peer);
    hold(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return false;
  }
}

// Two connected sockets.
struct Pair {
  Pair() {
    int ends[2];
    hold(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    near = Descriptor(ends[0]);
    far = Descriptor(ends[1]);
  }
  Descriptor near, far;
};

struct Received {
  std::vector<Frame> frames;
  bool valid = true;  // false if a message is malformed
};

// Receives the bytes in pieces of this size.
Received receive(std::string_view bytes, std::size_t piece) {
  Pair sockets;
  Connection connection(std::move(sockets.near));
  Received received;
  for (; received.valid && !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    const std::size_t size = std::min(piece, bytes.size());
    hold(::send(sockets.far.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size));
    hold(connection.receive());
    received.valid = succeeds([&] {
      while (auto frame = connection.next(kMaxHello)) received.frames.push_back(*std::move(frame));
    });
  }
  return received;
}

// The bytes that a connection sends for these messages.
std::string sent(const std::vector<Frame>& frames) {
  Pair sockets;
  Connection connection(std::move(sockets.near));
  for (const Frame& frame : frames) connection.send(frame);
  std::string bytes;
  char piece[4096];
  while (connection.has_output()) {
    hold(connection.flush());
    for (ssize_t n; (n = ::recv(sockets.far.get(), piece, sizeof piece, MSG_DONTWAIT)) > 0;)
      bytes.append(piece, static_cast<std::size_t>(n));
  }
  return bytes;
}

bool same(const Frame& a, const Frame& b) {
  return a.kind == b.kind && a.id == b.id && a.timeout_ms == b.timeout_ms && a.key == b.key && a.value == b.value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Token token = Token::random();
  static const Challenge challenge;
  const std::string_view bytes(reinterpret_cast<const char*>(data), std::min<std::size_t>(size, 32768));
  const Received whole = receive(bytes, 32768), pieces = receive(bytes, 1 + size % 7);
  hold(whole.valid == pieces.valid &&
       std::equal(whole.frames.begin(), whole.frames.end(), pieces.frames.begin(), pieces.frames.end(), same));
  if (!whole.frames.empty()) hold(bytes.starts_with(sent(whole.frames)));

  for (const Frame& frame : whole.frames) {
    Claim claim;
    const bool is_hello = succeeds([&] { claim = Challenge::claim_of(frame); });
    hold(is_hello == succeeds([&] { hold(!challenge.proves(token, frame)); }));
    if (!is_hello) continue;
    hold(!challenge.proves_server(token, frame, frame));
    // The same claim with the token is believed, and no longer if its last byte is another.
    Frame hello = challenge.hello(token, claim, random_bytes(kNonceBytes), 0);
    hold(challenge.proves(token, hello));
    if (claim.version.empty()) continue;
    hello.value.back() ^= 1;
    hold(!challenge.proves(token, hello));
  }
  return 0;
}
