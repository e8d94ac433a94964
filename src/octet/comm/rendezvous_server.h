// The thread in rank 0's process that serves the rendezvous. It accepts the ranks' connections, answers their requests with a
// KeyStore and notices lost ranks. Until a connection has finished the handshake (handshake.h) it is a stranger. A stranger gets
// nothing but the handshake and is dropped if it sends more than 4 KiB or takes too long. A rank that exceeds its quota is lost.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "octet/comm/connection.h"
#include "octet/comm/handshake.h"
#include "octet/comm/key_store.h"

namespace octet::comm {

// How many strangers may be connected at a time. Further ones wait in the system's queue, or are closed if their address has its
// share.
inline constexpr std::size_t kStrangers = 64, kStrangersPerAddress = 8;
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
  // A connected rank, or a stranger.
  struct Peer {
    Connection connection;
    std::string address;
    Challenge challenge = {};
    int rank = -1;
    Clock::time_point since, heard;
    Clock::time_point deadline = Clock::time_point::max();  // by when all ranks must have joined, as this rank demands
    std::uint32_t timeout_ms = 0;
    bool lost = false;  // the others know that it is lost; a silent rank stays connected and may still receive that message
    bool last = false;  // nothing more is read from it; it is closed after the queued output was sent
    bool full = false;  // it has left too much unread
  };

  void run();
  bool has_room() const;
  bool has_its_share(const std::string& address) const;
  void accept_new(Clock::time_point now);
  void read(Peer& peer, Clock::time_point now);
  void handle(Peer& peer, Frame&& frame, Clock::time_point now);
  void admit(Peer& peer, const Frame& hello, Clock::time_point now);
  void refuse(Peer& peer, const std::string& why);
  void drop(Peer& peer, const std::string& how);
  void report(const Peer& stranger, const std::string& how, Clock::time_point now);
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
  Descriptor listener_;
  Wakeup wake_;
  std::atomic<bool> stopping_ = false;
  // The thread owns the following members.
  Stage stage_ = Stage::gathering;
  std::string abandoned_;  // the reason
  std::string refused_;    // why the last refused rank was refused; part of the message about missing ranks
  std::list<Peer> peers_;
  std::vector<Peer*> ranks_;  // by rank; null if not connected
  std::vector<bool> came_;
  int count_ = 0;  // number of ranks that have joined
  Clock::time_point last_beat_, last_turn_;
  Clock::time_point report_again_;  // a flood of strangers must not fill the log
  bool accepting_ = true;
  KeyStore store_;
  std::thread thread_;
};

// The interval at which a rank and the server send each other a sign of life.
Clock::duration beat_for(double silence_s);

}  // namespace octet::comm
