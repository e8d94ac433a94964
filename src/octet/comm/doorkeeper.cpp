#include "octet/comm/doorkeeper.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/require.h"

namespace octet::comm {
namespace {

constexpr double kReportSeconds = 60;  // the shortest time between two warnings about strangers
constexpr int kAcceptedAtOnce = 64;    // so that a flood of connections does not delay those who are in

}  // namespace

Doorkeeper::Doorkeeper(Descriptor listener, Options options)
    : options_(std::move(options)), listener_(std::move(listener)), report_again_(Clock::now()), accept_again_(report_again_) {}

void Doorkeeper::watch(std::vector<pollfd>& polled) const {
  polled.push_back({has_room() && Clock::now() >= accept_again_ ? listener_.get() : -1, POLLIN, 0});
  for (const Stranger& stranger : strangers_) {
    // After the end of a stream, poll() always reports input. A connection that is no longer read is not polled for input.
    const int events = (stranger.last ? 0 : POLLIN) | (stranger.connection.has_output() ? POLLOUT : 0);
    polled.push_back({stranger.connection.fd(), static_cast<short>(events), 0});
  }
}

void Doorkeeper::handle(std::span<const pollfd> polled, Clock::time_point now) {
  std::size_t i = 1;
  for (Stranger& stranger : strangers_) {
    if (polled[i++].revents != 0 && !stranger.last) read(stranger, now);
  }
  if (polled[0].revents != 0) accept_new(now);
}

bool Doorkeeper::has_its_share(const std::string& address) const {
  return std::count_if(strangers_.begin(), strangers_.end(), [&](const Stranger& stranger) {
           return stranger.address == address;
         }) >= static_cast<std::ptrdiff_t>(kStrangersPerAddress);
}

void Doorkeeper::accept_new(Clock::time_point now) {
  for (int i = 0; i < kAcceptedAtOnce && has_room(); ++i) {
    Descriptor client = accept_from(listener_);
    if (!client.open()) {
      // Out of file descriptors. poll() would report the listener again at once.
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
        accept_again_ = now + seconds(options_.retry_s);
      return;
    }
    const std::string address = address_of_peer(client);
    if (has_its_share(address)) continue;  // closed; a member of the job that is closed so tries again
    strangers_.push_back({.connection = Connection(std::move(client)), .address = address, .since = now});
    strangers_.back().connection.send(strangers_.back().challenge.frame());
  }
}

void Doorkeeper::read(Stranger& stranger, Clock::time_point now) {
  const bool alive = stranger.connection.receive(kMaxHello);
  try {
    if (const auto frame = stranger.connection.next(kMaxHello)) return admit(stranger, *frame, now);
    demand(stranger.connection.unread() < kMaxHello, ExitCode::peer, "sent ", kMaxHello, " bytes before a handshake");
  } catch (const Error& error) {
    report(stranger, error.what(), now);
    stranger.last = true;
  }
  stranger.last = stranger.last || !alive;
}

// Nothing that the stranger says is believed, or repeated in a message, before its proof has been checked.
void Doorkeeper::admit(Stranger& stranger, const Frame& hello, Clock::time_point now) {
  const Claim claim = Challenge::claim_of(hello);
  if (!stranger.challenge.proves(options_.token, hello)) {
    report(stranger, "has another token, or none", now);
    refuse(stranger, concat("its token is not ", options_.owner, "'s; ",
                            options_.token.is_secret() ? "all ranks need the same OCTET_TOKEN_FILE or OCTET_TOKEN"
                                                       : concat(options_.owner, " has none")));
    last_refusal_ = concat("a connection from ", stranger.address, " had another token, or none");
    return;
  }
  if (const std::string why = options_.refusal(claim); !why.empty()) return refuse(stranger, why);
  stranger.connection.send(stranger.challenge.welcome(options_.token, hello));
  options_.enter({.connection = std::move(stranger.connection), .claim = claim, .timeout_ms = hello.timeout_ms});
}

void Doorkeeper::refuse(Stranger& stranger, const std::string& why) {
  last_refusal_ = why;
  stranger.connection.send({Message::refused, 0, 0, {}, why});
  stranger.last = true;
}

void Doorkeeper::report(const Stranger& stranger, const std::string& how, Clock::time_point now) {
  if (now < report_again_) return;
  report_again_ = now + seconds(kReportSeconds);
  log_warning(concat("rendezvous: dropped a connection from ", stranger.address, ", which ", how));
}

void Doorkeeper::flush(Clock::time_point now) {
  for (Stranger& stranger : strangers_) {
    if (!stranger.connection.open()) continue;  // it has entered
    const bool late = now - stranger.since > seconds(options_.handshake_s);
    if (late && !stranger.last) report(stranger, concat("has not ended its handshake within ", options_.handshake_s, " s"), now);
    const bool alive = stranger.connection.flush();
    // A refused connection is also closed if it never reads the refusal.
    if (late || !alive || (stranger.last && !stranger.connection.has_output())) stranger.connection.close();
  }
  strangers_.remove_if([](const Stranger& stranger) { return !stranger.connection.open(); });
}

void Doorkeeper::close() {
  listener_.close();
  strangers_.clear();
}

}  // namespace octet::comm
