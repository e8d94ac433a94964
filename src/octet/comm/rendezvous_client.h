// A rank's end of the rendezvous: a connection to rank 0, and a thread that transfers messages and sends signs of life.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "octet/comm/connection.h"

namespace octet::comm {

class RendezvousClient {
 public:
  // `connection` has ended the handshake.
  RendezvousClient(Connection connection, int rank, double join_timeout_s, double silence_s);
  // Tells the server that this rank is leaving, or that it failed if an
  // exception is in flight. Waits at most 1 s for the acknowledgement.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // Returns when all ranks are connected. Throws Error{peer} if they are not.
  void await_ready();
  // Queues a message and does not wait.
  void post(Frame frame);
  // Sends a request and returns the value of the answer. Throws Error{peer}
  // with the server's message, or with the reason why there is no answer.
  std::string request(Frame frame);

  // The lost ranks, in the order in which they were noticed: "rank 2 closed its connection; rank 3 ..." or "". Waits up to wait_s
  // for the first one.
  std::string lost_text(double wait_s) const;

 private:
  struct Loss {
    int rank;
    std::string how;
  };
  struct Answer {
    bool good;
    std::string text;
  };

  void run();
  bool take_messages();  // handles what has been received; false: the server sent something else, so it is lost
  bool send_queued();    // false: everything has been sent and the server has had time to answer
  void handle(Frame&& frame);
  void end(const std::string& why);  // all current and later requests fail with this reason
  void lose_server(const std::string& how);
  std::vector<Loss> losses(double wait_s) const;

  const int rank_;
  const std::uint32_t join_timeout_ms_;
  const Clock::duration silence_, beat_;
  const int exceptions_;  // number of exceptions in flight at construction
  Wakeup wake_;
  Connection connection_;  // used only by the thread

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Frame> queued_;
  std::map<std::uint64_t, std::optional<Answer>> answers_;  // by the id of a pending request
  std::uint64_t next_id_ = 1;
  bool ready_ = false;
  std::string ended_;  // the reason why no request is possible any more, or empty
  std::vector<Loss> losses_;
  std::optional<Clock::time_point> leaving_;  // deadline of the goodbye
  std::thread thread_;
};

}  // namespace octet::comm
