// The messages between the supervisors of a run, as JSON. An order goes from the coordinator to a node, the others to the
// coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/app/links.h"
#include "octet/app/local_ranks.h"
#include "octet/app/restart_budget.h"
#include "octet/base/json.h"
#include "octet/checkpoint/replica_client.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

namespace topic {
inline constexpr const char* kJoin = "join";            // NodeJoin
inline constexpr const char* kPages = "pages";          // pages_text()
inline constexpr const char* kLinks = "links";          // LinkReport, after a gate
inline constexpr const char* kEnded = "ended";          // NodeEnd, when the first rank fails and when all have ended
inline constexpr const char* kWelcome = "welcome";      // Order without ranks: this node coordinates
inline constexpr const char* kRedirect = "redirect";    // NodeAddress: that node coordinates
inline constexpr const char* kSearching = "searching";  // Order without ranks: this node does not, as long as lower ones live
inline constexpr const char* kOrder = "order";          // Order
inline constexpr const char* kStacks = "stacks";        // {}: asks the ranks to write the stacks of their threads
inline constexpr const char* kStop = "stop";            // {"grace_s": ...}
inline constexpr const char* kFinish = "finish";        // RunOver
}  // namespace topic

struct NodeJoin {
  std::string name;  // of the machine
  std::string host;  // where other nodes reach it
  int port = 0;      // free, for rank 0
  int ranks = 1;     // that it runs in an attempt
  int replicas_port = 0;  // of its ReplicaServer; 0: it has none
  std::string command;
  std::string launch;  // the options of `octet launch` that should be the same on all hosts
  std::string unfit;  // what its gate has found; "": nothing
  std::int64_t utc_s = 0;  // what the host's clock shows, in seconds since 1970
};

struct NodeAddress {
  int node = 0;
  std::string host;
};

// One attempt on one node.
struct Order {
  std::int64_t attempt = 0;
  std::int64_t recorded = 0;  // the highest number that has a file in attempts/
  std::string job;
  bool loaded = false;  // an attempt of the job has reached `loading`, so no older run in the folder forbade it
  bool saved = false;   // an attempt of the job has saved a checkpoint
  bool trained = false;  // an attempt of the job has finished a step, so the folder has a run.json
  bool gate = true;    // hosts that have a gate run it before the ranks
  RanksHere ranks;     // none: the node is a spare
  checkpoint::ReplicaPlaces replicas;
  std::vector<std::string> links;  // "HOST:PORT" of the hosts to which the gate measures links; see links.h
  std::vector<int> chosen;  // the nodes that run ranks, in the order of their ranks
  std::vector<std::string> command;
  std::string config;  // the text of RUN.toml with which the job began; "": the ranks read the file
};

struct LinkReport {
  std::int64_t attempt = 0;
  std::vector<LinkRate> links;
};

struct NodeEnd {
  std::int64_t attempt = 0;
  int code = 0;
  std::string what;    // which rank failed, and how
  Cause cause = Cause::unknown;
  std::vector<int> unreachable;  // ranks of other nodes that a rank of this one cannot connect to, with code 78
  bool asked = false;  // by a signal to this node's supervisor
  bool all = false;    // all ranks of the node have ended
  int port = 0;        // free, for rank 0 of the next attempt
};

struct RunOver {
  int code = 0;
  std::string why;  // for this node alone; may be empty
};

std::string text_of(const NodeJoin& join);
std::string text_of(const NodeAddress& address);
std::string text_of(const Order& order);
std::string text_of(const LinkReport& report);
std::string text_of(const NodeEnd& end);
std::string text_of(const RunOver& over);
// These throw Error{peer} if the text is not such a message.
NodeJoin join_of(const std::string& text);
NodeAddress address_of(const std::string& text);
Order order_of(const std::string& text);
LinkReport link_report_of(const std::string& text);
NodeEnd end_of(const std::string& text);
RunOver over_of(const std::string& text);
double grace_of(const std::string& text);  // of a stop

// Write and read the pages of ranks first to first+count-1. The text holds ages instead of times, because clocks of machines
// differ.
std::string pages_text(std::int64_t attempt, const telemetry::RankPages& pages, int first, int count);
// Changes nothing and returns false if the text is about another attempt. Leaves ranks out for which `pages` has no room.
bool read_pages(const std::string& text, std::int64_t attempt, telemetry::RankPages& pages);

}  // namespace octet::app
