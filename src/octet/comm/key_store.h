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

class KeyStore {
 public:
  // Receives the answers to requests.
  using Answer = std::function<void(int rank, const Frame& frame)>;
  KeyStore(int size, Answer answer) : size_(size), answer_(std::move(answer)) {}

  // Handles a set, get, wait or meet request.
  void serve(int rank, Frame&& request, Clock::time_point now);
  // A rank has said goodbye. It takes part in no further meeting, so open meetings fail.
  void leave(int rank);
  // A rank is lost. All current and later waits for absent keys and meetings fail with "rank N HOW".
  void lose(int rank, const std::string& how);
  // Fails the requests whose deadline has passed. next_deadline() is the earliest deadline.
  void expire(Clock::time_point now);
  Clock::time_point next_deadline() const;

 private:
  struct Waiter {
    int rank;
    Frame request;
    Clock::time_point deadline;
  };
  struct Meeting {
    std::map<int, Waiter> here;  // the ranks that have arrived
  };

  void set(Frame&& request);
  void wait(Waiter&& waiter);
  void meet(Waiter&& waiter);
  void conclude(const std::string& name, const Meeting& meeting);
  void disperse(const std::string& name, const Meeting& meeting, std::string_view why);
  void refuse(const Waiter& waiter, const std::string& text);

  int size_;
  Answer answer_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;
  std::map<std::string, Meeting> meetings_;
  std::set<int> left_;
  std::string lost_;  // "rank N HOW" for the first rank that was lost
};

}  // namespace octet::comm
