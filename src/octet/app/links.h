// The links between the hosts of a run, as the gate measures them. Before an attempt, each host sends to two other hosts for a
// moment; the coordinator compares what all hosts have reached and names a host whose own link is slow. What is measured is one
// TCP connection between the addresses of the supervisors. NCCL may use several connections, or another network.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/comm/handshake.h"

namespace octet::app {

// A gate spends at most this much time on its links.
inline constexpr double kLinksS = 0.9;
// A host is slow if it reaches less than this share of what the median host reaches, or answers that many times later.
inline constexpr double kSlowLink = 0.25, kLateLink = 10;
// A link is late only if it answers this much later than others: an idle processor may need that long to wake up.
inline constexpr double kLateLinkS = 0.002;

// The links that the gate of a host measures. A supervisor passes them on in OCTET_LINKS.
struct LinkPlaces {
  int node = 0;
  std::vector<std::string> to;  // "HOST:PORT" of ReplicaServer

  // "OCTET_LINKS=...", for the environment of the gate.
  std::string variable() const;
};
// Returns nothing without a supervisor, or if there is nothing to measure. Throws Error{config}.
std::optional<LinkPlaces> inherited_link_places();

struct LinkRate {
  std::string to;          // "HOST:PORT"
  double bytes_per_s = 0;  // that the other end has confirmed; 0: nothing, in the time that there was
  double latency_s = 0;    // of the fastest of several short messages and their answers; 0: there was none
  std::string trouble;     // why the link could not be measured; "": it was
};
// "10.0.0.3:4567: 410 MB/s, answers after 0.1 ms".
std::string text_of(const LinkRate& rate);
// Measures a link for at most `limit_s`. Throws nothing.
LinkRate measure_link(const std::string& to, const comm::Token& token, const comm::Claim& claim, double limit_s);

// A link between two nodes.
struct NodeLink {
  int from = 0, to = 0;
  double bytes_per_s = 0, latency_s = 0;
};
struct SlowHost {
  int node = -1;
  std::string what;  // "sends at most 0.24 MB/s, and the median host 410 MB/s"
};
// Returns the hosts whose own link is slow. A host is as fast as the best of its links in a direction, because the other end of
// a slow link may be at fault. So each needs two links in a direction, and nobody is named if only two hosts were measured.
std::vector<SlowHost> slow_hosts(const std::vector<NodeLink>& links);

}  // namespace octet::app
