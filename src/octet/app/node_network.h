// Messages between the supervisors of a run, one on each host (a node), over TCP connections whose two ends have both proved
// that they know the token (comm/handshake.h). A node has at most one connection to the coordinating node, its uplink, and any
// number of connections from others. A thread serves them, so that a node that waits for a disk or for its terminal still sends
// signs of life, for up to Options::hang_s. The first supervisor with a node's number keeps others with that number out.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "octet/comm/connection.h"
#include "octet/comm/doorkeeper.h"

namespace octet::app {

inline constexpr int kUplink = -1;  // denotes the node to which this node has connected
// Part of the refusal of a node whose number another supervisor has: "node2 is here already, from 10.0.0.7".
inline constexpr std::string_view kHereAlready = " is here already, from ";

struct NodeEvent {
  enum class Kind : std::uint8_t {
    joined,   // a node has connected to this one
    message,  // `what` it is about, `text` in JSON
    gone,     // the connection has ended; `text` says how: "closed its connection"
  };
  Kind kind = Kind::message;
  int node = kUplink;
  std::string what, text;
};

class NodeNetwork {
 public:
  struct Options {
    int node = 0, nodes = 1;
    std::string host;  // of this node; it listens only there
    int port = 0;      // of all nodes
    comm::Token token;
    std::string version;   // must be the same on all nodes
    double silence_s = 5;  // a node that sends nothing for this long is gone
    double hang_s = 60;    // this node falls silent if nobody has called take() for this long
  };
  // Listens. Throws Error{peer} "node2 (10.0.0.3) cannot listen at ...".
  explicit NodeNetwork(Options options);
  // Sends what is queued, for at most a second.
  ~NodeNetwork();
  NodeNetwork(const NodeNetwork&) = delete;
  NodeNetwork& operator=(const NodeNetwork&) = delete;

  // Becomes readable when there are events.
  int fd() const { return news_.fd(); }
  std::vector<NodeEvent> take();
  // Does nothing if there is no such connection.
  void send(int node, const std::string& what, std::string text);
  void close(int node);
  // Makes the uplink. Forgets the events of the previous uplink. Throws Error{peer} with a sentence.
  void connect(int node, const std::string& host, double timeout_s);
  // The address of this machine that the uplink uses, or the one where it listens.
  std::string address() const;
  // Why the last process that wanted to join was refused, or "".
  std::string last_refusal() const;

 private:
  struct Link {
    comm::Connection connection;
    Clock::time_point heard;
  };

  void run();
  // The thread calls these two and holds the mutex.
  std::string refusal(const comm::Claim& claim) const;
  void enter(comm::Guest&& guest);
  // Whether the connection still exists.
  bool serve(int node, Link& link, bool readable, Clock::time_point now, std::string& why);
  void push(NodeEvent event);

  const Options options_;
  comm::Wakeup wake_, news_;
  mutable std::mutex mutex_;
  std::map<int, Link> links_;
  std::deque<NodeEvent> events_;
  std::string address_;
  Clock::time_point taken_ = Clock::now();
  bool stop_ = false;
  comm::Doorkeeper door_;
  std::thread thread_;
};

}  // namespace octet::app
