// What rank 0 keeps for all ranks: values by key, who waits for which, and who is at which meeting. No sockets, no threads.
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
  // Where answers go.
  using Answer = std::function<void(int rank, const Frame& frame)>;
  KeyStore(int size, Answer answer) : size_(size), answer_(std::move(answer)) {}

  // A set, get, wait or meet.
  void serve(int rank, Frame&& request, Clock::time_point now);
  // A rank that has said goodbye comes to no meeting.
  void leave(int rank);
  // A rank is lost: whoever waits, now or later, is told "rank N HOW" instead of waiting.
  void lose(int rank, const std::string& how);
  // Ends the waits whose time is over; next_deadline() says when there is one to end.
  void expire(Clock::time_point now);
  Clock::time_point next_deadline() const;

 private:
  struct Waiter {
    int rank;
    Frame request;
    Clock::time_point deadline;
  };
  struct Meeting {
    std::map<int, Waiter> here;  // by rank
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
  std::string lost_;  // of the first rank that was lost, "rank N HOW"
};

}  // namespace octet::comm
