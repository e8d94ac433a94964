// A cluster of GPUs, and the time and traffic of collectives between them.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/parallel/groups.h"
#include "octet/plan/time_model.h"

namespace octet::plan {

struct Gpu {
  std::string name;              // "H100"
  std::size_t memory_bytes = 0;  // memory that CUDA can allocate
  Machine machine;
  double nvlink_bytes_per_s = 0;   // bus bandwidth of large all-gathers within a node
  double network_bytes_per_s = 0;  // bandwidth of the network adapter of a GPU
};

struct Cluster {
  Gpu gpu;
  int gpus = 1, nodes = 1;
  int per_node() const { return gpus / nodes; }
};

// The number of ranks of a group, the number of nodes that they occupy, and the smallest number of ranks in one of these nodes.
// Consecutive ranks fill one node after another.
struct Span {
  int ranks = 1, nodes = 1, fewest = 1;
  bool operator==(const Span&) const = default;
};
Span span_of(const std::vector<int>& ranks, int per_node);

// The groups of an axis may lie on the nodes differently: of groups of 6 ranks in nodes of 8, some lie within a node and others
// in two. Every step waits for all of them, so these functions return the span of the group that sends most over the network.
Span widest_span(const parallel::Mesh& mesh, std::initializer_list<parallel::Axis> axes, int per_node);
// Returns the span of the messages between a pipeline stage and the next one. The first stage follows the last one.
Span link_span(const parallel::Mesh& mesh, int stage, int per_node);

// The name of each group of a rank, and the span of the widest group of its kind.
using Spans = std::vector<std::pair<std::string, Span>>;
Spans spans_of(const parallel::Mesh& mesh, const parallel::Groups& groups, int rank, int per_node);
Span find_span(const Spans& spans, std::string_view group);

// How the `bytes` that a GPU sends to other ranks in an op are divided between NVLink and the network. A group within one node
// sends everything over NVLink; a group with one rank in each node sends everything over the network. Otherwise, with n ranks,
// of which g are in the node that has the fewest, a rank of that node sends this over the network:
//   all_to_all  (n - g) / (n - 1) of its bytes, because it sends an equal share to each other rank.
//   others      1/g of its bytes. The model follows NCCL's rings: there are g of them, and each leaves that node at another rank.
struct Sent {
  double nvlink_bytes = 0, network_bytes = 0;
};
Sent sent_of(Span span, std::string_view op, double bytes);

// The time of an op in which a rank sends `bytes`: start + steps of the ring x latency + the larger of the NVLink and network
// transfer times, because both links are used at once. If `joins`, the collective shares the launch of the one before and takes
// only the transfer time.
double exchange_seconds(const Gpu& gpu, Span span, std::string_view op, double bytes, bool joins);
// The time in which a copy engine reads `bytes` from another GPU of the same node, including its share of the fences around it.
double fetch_seconds(const Gpu& gpu, double bytes);
// Whether the network transfer takes longer than the NVLink transfer.
bool network_decides(const Gpu& gpu, Span span, std::string_view op, double bytes);

}  // namespace octet::plan
