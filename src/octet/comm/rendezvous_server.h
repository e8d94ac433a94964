// The thread in rank 0's process that serves the rendezvous. It receives the ranks' connections from a Doorkeeper, answers
// their requests with a KeyStore and notices lost ranks. A rank that exceeds its quota is lost.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "octet/comm/connection.h"
#include "octet/comm/doorkeeper.h"
#include "octet/comm/key_store.h"

namespace octet::comm {

inline constexpr std::size_t kMaxUnsent = std::size_t{128} << 20;  // what a rank may leave unread

class RendezvousServer {
 public:
  struct Options {
    int size = 1;
    double silence_s = 10, handshake_s = 5;
    Token token = {};
    std::string version = {};
  };
  RendezvousServer(Descriptor listener, Options options);
  ~RendezvousServer();  // says goodbye to the ranks and waits at most 1 s for their goodbyes
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

 private:
  enum class Stage { gathering, running, abandoned };
  // A connected rank.
  struct Peer {
    Connection connection;
    int rank = -1;
    Clock::time_point heard;
    Clock::time_point deadline = Clock::time_point::max();  // by when all ranks must have joined, as this rank demands
    std::uint32_t timeout_ms = 0;
    bool lost = false;  // the others know that it is lost; a silent rank stays connected and may still receive that message
    bool last = false;  // nothing more is read from it; it is closed after the queued output was sent
    bool full = false;  // it has left too much unread
  };

  void run();
  // Why a process that knows the token is refused nevertheless, or "".
  std::string refusal(const Claim& claim) const;
  void enter(Guest&& guest);
  void read(Peer& peer, Clock::time_point now);
  void take_messages(Peer& peer, Clock::time_point now);
  void handle(Peer& peer, Frame&& frame, Clock::time_point now);
  void drop(Peer& peer, const std::string& how);
  void lose(Peer& peer, const std::string& how);
  void abandon(const std::string& why);
  void look_at_clocks(Clock::time_point now);
  Clock::time_point next_turn(Clock::time_point now) const;
  void flush();
  void send_all(const Frame& frame);
  void answer(int rank, const Frame& frame);
  std::vector<int> missing() const;
  void say_goodbye();

  const Options options_;
  const int size_;
  const Clock::duration silence_, beat_;
  Wakeup wake_;
  std::atomic<bool> stopping_ = false;
  // The thread owns the following members.
  Stage stage_ = Stage::gathering;
  std::string abandoned_;  // the reason
  std::list<Peer> peers_;
  std::vector<Peer*> ranks_;  // by rank; null if not connected
  std::vector<bool> came_;
  int count_ = 0;  // number of ranks that have joined
  Clock::time_point last_beat_, last_turn_;
  KeyStore store_;
  Doorkeeper door_;
  std::thread thread_;
};

// The interval at which a rank and the server send each other a sign of life.
Clock::duration beat_for(double silence_s);

}  // namespace octet::comm
