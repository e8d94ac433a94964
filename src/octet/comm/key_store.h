// The state of the rendezvous server: values by key, the ranks that wait for a key, and the ranks that take part in a meeting (a
// barrier or agreement). It uses no sockets and no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/comm/connection.h"

namespace octet::comm {

// The limits on what one rank may hold in the store, so that no rank can fill rank 0's memory.
struct Quota {
  std::size_t keys = 10'000;                   // that it has set
  std::size_t bytes = std::size_t{256} << 20;  // of keys and values that it has set and of its requests that wait
  std::size_t requests = 1024;                 // that wait
};

class KeyStore {
 public:
  // Receives the answers to requests.
  using Answer = std::function<void(int rank, const Frame& frame)>;
  KeyStore(int size, Answer answer, const Quota& quota = {})
      : size_(size), quota_(quota), answer_(std::move(answer)), holdings_(static_cast<std::size_t>(size)) {}

  // Handles a set, get or meet request. Throws Error{peer} if the rank would exceed its quota; the request then has no
  // effect.
  void serve(int rank, Frame&& request, Clock::time_point now);
  // A rank has said goodbye. It takes part in no further meeting, so open meetings fail.
  void leave(int rank);
  // A rank is lost. All current and later waits for absent keys and meetings fail with "rank N HOW".
  void lose(int rank, const std::string& how);
  // Fails the requests whose deadline has passed. next_deadline() is the earliest deadline.
  void expire(Clock::time_point now);
  Clock::time_point next_deadline() const;
  std::size_t keys() const { return values_.size(); }

 private:
  struct Value {
    std::string text;
    int owner;
    std::uint64_t reads;  // after which it goes; 0: it stays
  };
  struct Waiter {
    int rank;
    Frame request;
    Clock::time_point deadline;
  };
  struct Meeting {
    std::map<int, Waiter> here;  // the ranks that have arrived
  };
  // The part of its quotas that a rank uses.
  struct Holding {
    std::size_t keys = 0, bytes = 0, requests = 0;
  };

  void set(int rank, Frame&& request);
  void wait(Waiter&& waiter);
  void meet(Waiter&& waiter);
  // Answers a get. Returns false if that was the last read of the value.
  bool read(const Waiter& waiter, Value& value);
  void forget(std::map<std::string, Value>::iterator value);
  void hold(const Waiter& waiter);     // counts a request that waits from now on
  void release(const Waiter& waiter);  // and no longer
  void conclude(const std::string& name, const Meeting& meeting);
  void disperse(const std::string& name, const Meeting& meeting, std::string_view why);
  void refuse(const Waiter& waiter, const std::string& text);
  Holding& of(int rank) { return holdings_[static_cast<std::size_t>(rank)]; }

  int size_;
  Quota quota_;
  Answer answer_;
  std::vector<Holding> holdings_;  // by rank
  std::map<std::string, Value> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;
  std::map<std::string, Meeting> meetings_;
  std::set<int> left_;
  std::string lost_;  // "rank N HOW" for the first rank that was lost
};

}  // namespace octet::comm
