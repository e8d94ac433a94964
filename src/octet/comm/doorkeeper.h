// Admits processes that know the token of the job. Accepts the connections of a listener and shakes hands with each
// (handshake.h). Until a connection has finished the handshake it is a stranger: it gets nothing but the handshake, and is
// dropped if it sends more than 4 KiB or takes too long. The owner polls; no call waits.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "octet/comm/connection.h"
#include "octet/comm/handshake.h"

namespace octet::comm {

// How many strangers may be connected at a time. Further ones wait in the system's queue, or are closed if their address
// already has kStrangersPerAddress.
inline constexpr std::size_t kStrangers = 64, kStrangersPerAddress = 8;

// A connection whose process has proved that it knows the token.
struct Guest {
  Connection connection;
  Claim claim;
  std::uint32_t timeout_ms = 0;  // how long it waits until all ranks have joined
};

class Doorkeeper {
 public:
  struct Options {
    std::string owner = "rank 0";  // in refusals
    Token token = {};
    double handshake_s = 5;
    double retry_s = 1;  // after this process ran out of file descriptors
    // Says why a stranger with a valid proof is refused nevertheless, or "".
    std::function<std::string(const Claim&)> refusal;
    std::function<void(Guest&&)> enter;  // the welcome is queued in its connection
  };
  Doorkeeper(Descriptor listener, Options options);

  // Appends what poll() must watch. handle() takes the same elements back.
  void watch(std::vector<pollfd>& polled) const;
  void handle(std::span<const pollfd> polled, Clock::time_point now);
  // Sends what is queued, and closes connections that take too long. Call it after handle(), and at least every retry_s.
  void flush(Clock::time_point now);
  // Closes the listener and all strangers.
  void close();
  // Why the last refused stranger was refused, or "".
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Stranger {
    Connection connection;
    std::string address;
    Challenge challenge = {};
    Clock::time_point since;
    bool last = false;  // nothing more is read from it; it is closed after the queued output was sent
  };

  bool has_room() const { return strangers_.size() < kStrangers; }
  bool has_its_share(const std::string& address) const;
  void accept_new(Clock::time_point now);
  void read(Stranger& stranger, Clock::time_point now);
  void admit(Stranger& stranger, const Frame& hello, Clock::time_point now);
  void refuse(Stranger& stranger, const std::string& why);
  void report(const Stranger& stranger, const std::string& how, Clock::time_point now);

  Options options_;
  Descriptor listener_;
  std::list<Stranger> strangers_;
  std::string last_refusal_;
  Clock::time_point report_again_;  // a flood of strangers must not fill the log
  Clock::time_point accept_again_;
};

}  // namespace octet::comm
