#include "octet/comm/handshake.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include "octet/base/fields.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet::comm {
namespace {

constexpr char kRank = 'r', kServer = 's';

std::string nonce_of(const Frame& hello) { return hello.key.substr(0, kNonceBytes); }

// The next message of the server, or nothing if the connection ended or the deadline passed.
std::optional<Frame> receive_one(Connection& connection, const std::string& server, Clock::time_point deadline) {
  while (true) {
    const bool alive = connection.flush() && connection.receive(kMaxHello);
    try {
      if (auto frame = connection.next(kMaxHello)) return frame;
    } catch (const Error& error) {
      fail(ExitCode::peer, server, " ", error.what());
    }
    if (!alive || Clock::now() >= deadline) return std::nullopt;
    pollfd polled{connection.fd(), static_cast<short>(POLLIN | (connection.has_output() ? POLLOUT : 0)), 0};
    ::poll(&polled, 1, milliseconds_until(deadline));
  }
}

// Whether the server let this rank in. False: it closed the connection or did not answer.
bool shake_hands(Connection& connection, const JoinOptions& options, Clock::time_point deadline) {
  const auto challenge = receive_one(connection, options.server, deadline);
  if (!challenge) return false;
  demand(challenge->kind == Message::challenge && challenge->value.size() == kNonceBytes, ExitCode::peer, options.server,
         " sent no challenge");
  const Challenge theirs(challenge->value);
  const Frame hello = theirs.hello(options.token, options.claim, random_bytes(kNonceBytes), milliseconds_of(options.timeout_s));
  connection.send(hello);
  const auto answer = receive_one(connection, options.server, deadline);
  if (!answer) return false;
  demand(answer->kind != Message::refused, ExitCode::peer, printable(answer->value));
  demand(theirs.proves_server(options.token, hello, *answer), ExitCode::peer, "the program that listens there as ",
         options.server, " has another token");
  return true;
}

}  // namespace

std::string Challenge::message(char role, const std::string& nonce, const Claim& claim) const {
  std::string text = concat("octet rendezvous 2", role) + nonce_ + nonce;  // all of fixed length
  put(text, claim.rank, 8);
  put(text, claim.size, 8);
  return text + claim.version;
}

Frame Challenge::hello(const Token& token, const Claim& claim, const std::string& nonce, std::uint32_t timeout_ms) const {
  return {Message::hello, claim.rank, timeout_ms, nonce + token.sign(message(kRank, nonce, claim)),
          concat(claim.size, " ", claim.version)};
}

Claim Challenge::claim_of(const Frame& hello) {
  const std::size_t space = hello.value.find(' ');
  Claim claim{.rank = hello.id, .size = 0, .version = {}};
  const char* const begin = hello.value.data();
  const char* const end = begin + std::min(space, hello.value.size());
  const auto [last, error] = std::from_chars(begin, end, claim.size);
  demand(hello.kind == Message::hello && hello.key.size() > kNonceBytes && space != std::string::npos && error == std::errc() &&
             last == end,
         ExitCode::peer, "did not say hello");
  claim.version = hello.value.substr(space + 1);
  return claim;
}

bool Challenge::proves(const Token& token, const Frame& hello) const {
  return token.verifies(message(kRank, nonce_of(hello), claim_of(hello)), std::string_view(hello.key).substr(kNonceBytes));
}

Frame Challenge::welcome(const Token& token, const Frame& hello) const {
  return {Message::welcome, 0, 0, {}, token.sign(message(kServer, nonce_of(hello), claim_of(hello)))};
}

bool Challenge::proves_server(const Token& token, const Frame& hello, const Frame& welcome) const {
  return welcome.kind == Message::welcome && token.verifies(message(kServer, nonce_of(hello), claim_of(hello)), welcome.value);
}

Connection join(const JoinOptions& options) {
  const auto deadline = Clock::now() + seconds(options.timeout_s);
  const std::string me = options.me.empty() ? concat("rank ", options.claim.rank) : options.me;
  const auto failed = [&](const std::string& what, std::string_view why) {
    fail(ExitCode::peer, me, " cannot ", what, ": ", why);
  };
  const std::string place =
      concat("reach ", options.server, " at ", options.host, " port ", options.port, " within ", options.timeout_s, " s");
  for (auto pause = seconds(0.02);; pause = std::min(pause * 2, seconds(0.5))) {
    std::optional<Descriptor> socket;
    try {
      socket.emplace(connect_to(options.host, options.port, deadline));
    } catch (const Error& error) {
      failed(place, error.what());
    }
    Connection connection(*std::move(socket));
    try {
      if (shake_hands(connection, options, deadline)) return connection;
    } catch (const Error& error) {
      throw Refused(ExitCode::peer, concat(me, " cannot join: ", error.what()));
    }
    const auto now = Clock::now();
    if (now >= deadline) failed(place, "no answer");
    std::this_thread::sleep_for(std::min(pause, deadline - now));
  }
}

}  // namespace octet::comm
