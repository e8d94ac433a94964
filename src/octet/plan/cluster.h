// A cluster of GPUs, and the time and traffic of collectives between them.
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

// The number of ranks of a group and of the nodes they are on. Consecutive ranks fill one node after another.
struct Span {
  int ranks = 1, nodes = 1;
  bool operator==(const Span&) const = default;
};
Span span_of(const std::vector<int>& ranks, int per_node);

// The name and span of each group of a rank.
using Spans = std::vector<std::pair<std::string, Span>>;
Spans spans_of(const parallel::Mesh& mesh, const parallel::Groups& groups, int rank, int per_node);
Span find_span(const Spans& spans, std::string_view group);

// The bytes that a GPU sends over NVLink and over the network, of the `bytes` that it sends to other ranks in an op. A group
// within one node sends everything over NVLink; a group with one rank in each node sends everything over the network. Otherwise,
// with n ranks, g of them in each node:
//   all_to_all  Each rank sends an equal share to each other rank, so (n - g) / (n - 1) of its bytes leave the node.
//   others      The model follows NCCL's rings: there are g of them, and each leaves the node at one rank. So 1/g of the bytes of
//   a
//               rank leave the node.
struct Sent {
  double nvlink_bytes = 0, network_bytes = 0;
};
Sent sent_of(Span span, std::string_view op, double bytes);

// The time of an op in which a rank sends `bytes`: start + steps of the ring x latency + the larger of the NVLink and network
// transfer times, because both links are used at once. If `joins`, the collective shares the launch of the one before and takes
// only the transfer time.
double exchange_seconds(const Gpu& gpu, Span span, std::string_view op, double bytes, bool joins);
// The time in which a copy engine reads `bytes` of another GPU of the same node, with its part of the fences around it.
double fetch_seconds(const Gpu& gpu, double bytes);
// Whether the network transfer takes longer than the NVLink transfer.
bool network_decides(const Gpu& gpu, Span span, std::string_view op, double bytes);

}  // namespace octet::plan
