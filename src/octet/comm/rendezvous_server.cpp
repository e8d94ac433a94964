#include "octet/comm/rendezvous_server.h"

#include <poll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/comm/rank_list.h"

namespace octet::comm {
namespace {

// After the end of a stream, poll() always reports input. A connection that is no longer read is therefore not polled for input.
short events_of(const Connection& connection, bool last) {
  return static_cast<short>((last ? 0 : POLLIN) | (connection.has_output() ? POLLOUT : 0));
}

}  // namespace

Clock::duration beat_for(double silence_s) { return seconds(std::min(1.0, silence_s / 4)); }

RendezvousServer::RendezvousServer(Descriptor listener, Options options)
    : options_(std::move(options)),
      size_(options_.size),
      silence_(seconds(options_.silence_s)),
      beat_(beat_for(options_.silence_s)),
      ranks_(static_cast<std::size_t>(size_)),
      came_(static_cast<std::size_t>(size_)),
      last_beat_(Clock::now()),
      last_turn_(last_beat_),
      store_(size_, [this](int rank, const Frame& frame) { answer(rank, frame); }),
      door_(std::move(listener), {.token = options_.token,
                                  .handshake_s = options_.handshake_s,
                                  .retry_s = std::chrono::duration<double>(beat_).count(),
                                  .refusal = [this](const Claim& claim) { return refusal(claim); },
                                  .enter = [this](Guest&& guest) { enter(std::move(guest)); }}),
      thread_(start_thread("the store of the ranks", [this] { run(); })) {}

RendezvousServer::~RendezvousServer() {
  stopping_ = true;
  wake_.poke();
  thread_.join();
}

void RendezvousServer::run() {
  std::vector<pollfd> polled;
  while (!stopping_) {
    polled.clear();
    polled.push_back({wake_.fd(), POLLIN, 0});
    door_.watch(polled);
    const std::size_t first = polled.size();
    for (const Peer& peer : peers_) {
      polled.push_back({peer.connection.fd(), events_of(peer.connection, peer.last), 0});
    }
    ::poll(polled.data(), polled.size(), milliseconds_until(next_turn(last_turn_)));
    wake_.clear();

    const auto now = Clock::now();
    if (now - last_turn_ > beat_ + silence_ / 2) {
      // This process itself was suspended. Messages that the others sent meanwhile are still to be read.
      for (Peer& peer : peers_) peer.heard = now;
    }
    last_turn_ = now;
    std::size_t i = first;
    for (Peer& peer : peers_) {
      if (polled[i++].revents != 0 && !peer.last) read(peer, now);
    }
    door_.handle(std::span(polled).subspan(1, first - 1), now);
    look_at_clocks(now);
    flush();
    door_.flush(now);
  }
  say_goodbye();
}

void RendezvousServer::read(Peer& peer, Clock::time_point now) {
  const bool alive = peer.connection.receive();
  peer.heard = now;
  take_messages(peer, now);
  if (!alive && !peer.last) drop(peer, "closed its connection");
}

void RendezvousServer::take_messages(Peer& peer, Clock::time_point now) {
  try {
    while (!peer.last) {
      auto frame = peer.connection.next();
      if (!frame) break;
      handle(peer, *std::move(frame), now);
    }
  } catch (const Error& error) {
    drop(peer, error.what());
  }
}

void RendezvousServer::flush() {
  for (Peer& peer : peers_) {
    const bool alive = !peer.full && peer.connection.flush();
    if (!alive && !peer.last) {
      drop(peer, peer.full ? concat("has left more than ", kMaxUnsent, " bytes unread") : "closed its connection");
    }
    if (alive && !(peer.last && !peer.connection.has_output())) continue;
    peer.connection.close();
    ranks_[static_cast<std::size_t>(peer.rank)] = nullptr;
  }
  peers_.remove_if([](const Peer& peer) { return !peer.connection.open(); });
}

void RendezvousServer::handle(Peer& peer, Frame&& frame, Clock::time_point now) {
  switch (frame.kind) {
    case Message::ping:
      return;
    case Message::goodbye:
      peer.last = true;
      if (stage_ == Stage::gathering) abandon(concat("rank ", peer.rank, " left before all ", size_, " ranks had joined"));
      return store_.leave(peer.rank);
    case Message::failure:
      return drop(peer, "ended with an error");
    case Message::set:
    case Message::get:
    case Message::meet:
      return store_.serve(peer.rank, std::move(frame), now);
    default:
      fail(ExitCode::peer, "sent a message that is not a rank's");
  }
}

std::string RendezvousServer::refusal(const Claim& claim) const {
  const std::uint64_t rank = claim.rank;
  if (claim.size != static_cast<std::uint64_t>(size_))
    return concat("rank ", rank, " was started with ", claim.size, " ranks, rank 0 with ", size_);
  if (claim.version != options_.version)
    return concat("rank ", rank, " is octet ", claim.version, ", rank 0 is octet ", options_.version);
  if (rank >= static_cast<std::uint64_t>(size_)) return concat("there is no rank ", rank, " of ", size_);
  if (stage_ == Stage::abandoned) return abandoned_;
  return came_[rank] ? concat("rank ", rank, " was started twice") : "";
}

void RendezvousServer::enter(Guest&& guest) {
  const auto now = Clock::now();
  const auto rank = static_cast<std::size_t>(guest.claim.rank);
  peers_.push_back({.connection = std::move(guest.connection),
                    .rank = static_cast<int>(rank),
                    .heard = now,
                    .deadline = now + std::chrono::milliseconds(guest.timeout_ms),
                    .timeout_ms = guest.timeout_ms});
  ranks_[rank] = &peers_.back();
  came_[rank] = true;
  if (++count_ == size_) {
    stage_ = Stage::running;
    send_all({Message::ready});
  }
  take_messages(peers_.back(), now);
}

void RendezvousServer::drop(Peer& peer, const std::string& how) {
  peer.last = true;
  lose(peer, how);
}

void RendezvousServer::lose(Peer& peer, const std::string& how) {
  if (peer.lost) return;
  peer.lost = true;
  if (stage_ == Stage::gathering) abandon(concat("rank ", peer.rank, " ", how, " before all ", size_, " ranks had joined"));
  send_all({Message::lost, static_cast<std::uint64_t>(peer.rank), 0, {}, how});
  store_.lose(peer.rank, how);
}

void RendezvousServer::abandon(const std::string& why) {
  stage_ = Stage::abandoned;
  abandoned_ = why;
  send_all({Message::refused, 0, 0, {}, why});
}

void RendezvousServer::look_at_clocks(Clock::time_point now) {
  const bool beat = now - last_beat_ >= beat_;
  if (beat) last_beat_ = now;
  for (Peer& peer : peers_) {
    if (peer.last) continue;
    if (stage_ == Stage::gathering && peer.deadline <= now) {
      const std::vector<int> absent = missing();
      abandon(concat(rank_list(absent), " of ", size_, absent.size() == 1 ? " has" : " have", " not joined within ",
                     peer.timeout_ms / 1e3, " s", door_.last_refusal().empty() ? "" : "; " + door_.last_refusal()));
    }
    if (now - peer.heard > silence_) {
      lose(peer, concat("has been silent for ", std::chrono::duration<double>(silence_).count(), " s"));
    }
    // A rank that does not read gets at most one queued ping.
    if (beat && !peer.connection.has_output()) peer.connection.send({});
  }
  store_.expire(now);
}

Clock::time_point RendezvousServer::next_turn(Clock::time_point now) const {
  auto next = std::min(now + beat_, store_.next_deadline());
  if (stage_ == Stage::gathering) {
    for (const Peer& peer : peers_) next = std::min(next, peer.deadline);
  }
  return next;
}

void RendezvousServer::send_all(const Frame& frame) {
  for (Peer& peer : peers_) {
    if (!peer.last) peer.connection.send(frame);
  }
}

void RendezvousServer::answer(int rank, const Frame& frame) {
  Peer* peer = ranks_[static_cast<std::size_t>(rank)];
  if (!peer || peer->last) return;
  // The rank is dropped in flush(), because the store is in use now.
  peer->full = peer->full || peer->connection.unsent() + frame.value.size() > kMaxUnsent;
  if (!peer->full) peer->connection.send(frame);
}

std::vector<int> RendezvousServer::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!came_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void RendezvousServer::say_goodbye() {
  door_.close();
  // A silent rank would not answer.
  peers_.remove_if([](const Peer& peer) { return peer.lost; });
  for (Peer& peer : peers_) peer.connection.send({Message::goodbye});
  const auto deadline = Clock::now() + seconds(kGoodbyeSeconds);
  std::vector<pollfd> polled;
  while (!peers_.empty() && Clock::now() < deadline) {
    for (Peer& peer : peers_) {
      // Closing the socket before the other end has closed it could discard data that is still on its way.
      const bool alive = peer.connection.flush() && peer.connection.receive();
      if (!alive)
        peer.connection.close();
      else if (!peer.connection.has_output())
        peer.connection.shut_sending();
    }
    peers_.remove_if([](const Peer& peer) { return !peer.connection.open(); });
    polled.clear();
    for (const Peer& peer : peers_) {
      polled.push_back({peer.connection.fd(), events_of(peer.connection, false), 0});
    }
    if (!polled.empty()) ::poll(polled.data(), polled.size(), milliseconds_until(deadline));
  }
}

}  // namespace octet::comm
