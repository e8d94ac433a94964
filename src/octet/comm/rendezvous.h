// How the ranks of a run find each other, exchange small values and notice lost ranks. A thread in rank 0's process serves a
// key-value store over TCP. Each rank has one connection to it, including rank 0, which begins with a handshake (handshake.h).
// Any thread may call the members. All errors are Error{peer} with one sentence that names the rank concerned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "octet/comm/token.h"

namespace octet::comm {

class RendezvousServer;
class RendezvousClient;

class Rendezvous {
 public:
  struct Options {
    int rank = 0, size = 1;
    std::string host = "127.0.0.1";                // host of rank 0: a name, IPv4 or IPv6 address; rank 0 listens only there
    int port = 0;                                  // port of rank 0; for rank 0 itself, 0 selects a free port
    Token token = {};                              // the same on all ranks
    std::string version = {};                      // of this program; must be the same on all ranks
    double join_timeout_s = 60;                    // limit for joining
    double timeout_s = 60;                         // limit for each wait below, unless it has its own limit
    double silence_s = 10;                         // a rank that sends nothing for this long counts as lost
    double handshake_s = 5;                        // rank 0 drops a connection that has not ended its handshake after this time
    std::function<void(int port)> listening = {};  // rank 0 calls it with its port, before it waits for the other ranks
  };
  // Joins and returns when all ranks are connected.
  explicit Rendezvous(const Options& options);
  // Says goodbye. If an exception is in flight, it tells the other ranks that this rank failed, and they count it as lost. Rank
  // 0's goodbye ends the rendezvous for all ranks; a barrier before it lets the others finish.
  ~Rendezvous();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int port() const { return port_; }
  // The address of this machine from which this rank reaches rank 0.
  const std::string& address() const { return address_; }

  // Keys have at most 4 KiB, values at most 64 MiB. Does not wait. Later requests of this rank see the value. If `reads` is above
  // 0, the key goes after so many get(). A rank that exceeds its quota (key_store.h) is lost.
  void set(const std::string& key, std::string_view value, int reads = 0);
  // Wait until the key has been set. If a rank is or becomes lost, waiting for a key that has not been set fails.
  std::string get(const std::string& key);
  std::string get(const std::string& key, double timeout_s);

  // Every rank calls these with the same `what` or `name`, which may be used again later. If a rank does not arrive in time, is
  // lost or has left, the call fails on every rank that has arrived.
  void barrier(const std::string& name);
  // Succeeds if all ranks have the same value. Otherwise fails on every
  // rank and names both values and the first rank that differs from rank 0.
  void agree(const std::string& what, const std::string& value);

  // The lost ranks: those that disconnected without a goodbye or were silent for too long, as in "rank 2 closed its connection;
  // rank 3 has been silent for 10 s", or "". They are in the order in which they were noticed, so the first is the likely cause.
  // A lost rank stays lost. Waits up to wait_s for the first lost rank, because a caller may see a broken connection before the
  // server's message about the loss arrives.
  std::string lost_text(double wait_s = 0) const;

 private:
  void meet(const std::string& name, const std::string& value);

  int rank_, size_, port_;
  std::string address_;
  double timeout_s_;
  std::unique_ptr<RendezvousServer> server_;  // on rank 0; must outlive rank 0's own client
  std::unique_ptr<RendezvousClient> client_;
};

}  // namespace octet::comm
