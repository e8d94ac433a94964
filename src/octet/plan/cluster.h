// GPUs in nodes, and what passes between them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/parallel/groups.h"
#include "octet/plan/time_model.h"

namespace octet::plan {

struct Gpu {
  std::string name;              // "H100"
  std::size_t memory_bytes = 0;  // that CUDA gives out
  Machine machine;
  double nvlink_bytes_per_s = 0;   // of the bus, in large all-gathers within a node
  double network_bytes_per_s = 0;  // of a GPU's own adapter
};

struct Cluster {
  Gpu gpu;
  int gpus = 1, nodes = 1;
  int per_node() const { return gpus / nodes; }
};

// Where the ranks of a group are. Ranks fill a node after the other.
struct Span {
  int ranks = 1, nodes = 1;
  bool operator==(const Span&) const = default;
};
Span span_of(const std::vector<int>& ranks, int per_node);

// By the names of a rank's groups.
using Spans = std::vector<std::pair<std::string, Span>>;
Spans spans_of(const parallel::Mesh& mesh, const parallel::Groups& groups, int rank, int per_node);
Span find_span(const Spans& spans, std::string_view group);

// What leaves a GPU, by the way it takes. Rings as NCCL lays them: a group with g ranks in a node has g rings, each of which
// leaves the node in one place, so that of what a rank sends a g-th goes over the network and the rest over NVLink. Within one
// node all of it is NVLink's; a group of one rank a node sends all over the network.
struct Sent {
  double nvlink_bytes = 0, network_bytes = 0;
};
Sent sent_of(Span span, double bytes);

// Both ways are used at once, so the slower one decides; and the ring has to be gone round once, unless the launch is shared.
double exchange_seconds(const Gpu& gpu, Span span, double bytes, bool joins);
bool network_decides(const Gpu& gpu, Span span, double bytes);

}  // namespace octet::plan
