// How the ranks of a run find each other, exchange small values, and notice who is gone: a key-value store over TCP, served by
// a thread in rank 0's process, with one connection from each rank (rank 0 too). Each member may be called from any thread.
// All errors are Error{peer} with one sentence that names the rank concerned.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octet::comm {

class RendezvousServer;
class RendezvousClient;

class Rendezvous {
 public:
  struct Options {
    int rank = 0, size = 1;
    std::string host = "127.0.0.1";                // of rank 0: a name or an address, IPv4 or IPv6
    int port = 0;                                  // of rank 0; 0 for rank 0: one that is free
    double timeout_s = 60;                         // for all ranks to be there, and of each wait below
    double silence_s = 10;                         // without a sign of life, after which a rank counts as lost
    std::function<void(int port)> listening = {};  // told by rank 0 where it listens, before it waits for the others
  };
  // Returns when all ranks are connected.
  explicit Rendezvous(const Options& options);
  // Says goodbye. During an exception the others are told that this rank has failed, and count it as lost. Rank 0's goodbye
  // ends the rendezvous for all; a barrier before it lets them finish.
  ~Rendezvous();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int port() const { return port_; }

  // Keys are at most 4 KiB, values 64 MiB. Does not wait: what this rank asks later sees it.
  void set(const std::string& key, std::string_view value);
  // Wait until the key is there. A rank that is lost, now or while waiting, ends the wait for a key that is not there.
  std::string get(const std::string& key);
  std::string get(const std::string& key, double timeout_s);
  void wait(const std::vector<std::string>& keys, double timeout_s);

  // Every rank calls these with the same `what` or `name`, which may be used again. They fail on every rank that has come when
  // one does not come in time, is lost or has left.
  void barrier(const std::string& name);
  // Fails on every rank, with the first rank that differs from rank 0 and both values, unless all values are the same.
  void agree(const std::string& what, const std::string& value);

  // Ranks that are gone without goodbye or have been silent too long, in the order in which they were missed, so that the first
  // is the likely cause. Once lost, for ever lost. Waits up to wait_s for the first: who sees a connection break may be earlier
  // here than the news.
  std::vector<int> lost(double wait_s = 0) const;
  // The same for a sentence: "rank 2 closed its connection; rank 3 has been silent for 10 s", or "".
  std::string lost_text(double wait_s = 0) const;

 private:
  void meet(const std::string& name, const std::string& value);

  int rank_, size_, port_;
  double timeout_s_;
  std::unique_ptr<RendezvousServer> server_;  // of rank 0; outlives its own client
  std::unique_ptr<RendezvousClient> client_;
};

}  // namespace octet::comm
