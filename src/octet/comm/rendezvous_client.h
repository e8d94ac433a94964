// A rank's end of the rendezvous: one connection to rank 0, and a thread that moves its messages and sends signs of life.
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
  RendezvousClient(Descriptor socket, int rank, int size, double timeout_s, double silence_s);
  // Says goodbye, or during an exception that this rank has failed, and waits for the server to hear it, a second at most.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  // Returns when all ranks are connected. Throws Error{peer}.
  void await_ready();
  // Sends and does not wait.
  void post(Frame frame);
  // Sends and waits for the answer's value. Throws Error{peer} with what the server says, or with what became of it.
  std::string request(Frame frame);

  // Ranks that are gone, the first to be missed first; waits for the first of them, up to wait_s.
  std::vector<int> lost(double wait_s) const;
  std::string lost_text(double wait_s) const;  // "rank 2 closed its connection; rank 3 ..." or ""

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
  bool send_queued();  // false: all is said, and the server has had its time
  void handle(Frame&& frame);
  void end(const std::string& why);  // nothing can be asked any more
  void lose_server(const std::string& how);
  std::vector<Loss> losses(double wait_s) const;

  const int rank_;
  const std::uint32_t timeout_ms_;
  const Clock::duration silence_, beat_;
  const int exceptions_;  // in flight when this was made
  Wakeup wake_;
  Connection connection_;  // of the thread alone

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Frame> queued_;
  std::map<std::uint64_t, std::optional<Answer>> answers_;  // by request under way
  std::uint64_t next_id_ = 1;
  bool ready_ = false;
  std::string ended_;  // why; empty: it has not
  std::vector<Loss> losses_;
  std::optional<Clock::time_point> leaving_;  // until when at most
  std::thread thread_;
};

}  // namespace octet::comm
