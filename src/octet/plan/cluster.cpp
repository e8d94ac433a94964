#include "octet/plan/cluster.h"

#include <algorithm>
#include <functional>
#include <map>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

using parallel::Axis;
using parallel::Mesh;

// The latency of a collective's start, of a ring step within a node and of a ring step between nodes. Source: NCCL's tuning model for
// rings with the Simple protocol (graph/tuning.cc); the value between nodes differs between versions. As a check, 1 MiB between four
// H200 GPUs took 16.7 us, and this model predicts 21 us.
constexpr double kStartS = 8.4e-6, kNvlinkStepS = 3.4e-6, kNetworkStepS = 9.6e-6;
// An estimate of the fixed time that a copy takes in addition to the time of its bytes.
constexpr double kFetchS = 8e-6;

// Whether a group with the span `a` sends less over the network than one with the span `b`, which has as many ranks.
bool is_narrower(const Span& a, const Span& b) { return a.fewest != b.fewest ? a.fewest > b.fewest : a.nodes < b.nodes; }

// The widest of the groups into which `group_of` divides all ranks.
Span widest(const Mesh& mesh, int per_node, const std::function<int(int rank)>& group_of) {
  std::map<int, std::vector<int>> groups;
  for (int rank = 0; rank < mesh.ranks(); ++rank) groups[group_of(rank)].push_back(rank);
  std::vector<Span> spans;
  for (const auto& [number, ranks] : groups) spans.push_back(span_of(ranks, per_node));
  return *std::max_element(spans.begin(), spans.end(), is_narrower);
}

// Numbers the groups on these axes. The ranks of a group have the same coordinates on all other axes.
int group_number(const Mesh& mesh, std::initializer_list<Axis> axes, int rank) {
  int number = 0;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    if (std::find(axes.begin(), axes.end(), Axis(i)) != axes.end()) continue;
    number = number * mesh.size(Axis(i)) + mesh.coordinate(Axis(i), rank);
  }
  return number;
}

}  // namespace

Span span_of(const std::vector<int>& ranks, int per_node) {
  std::map<int, int> nodes;  // how many of the ranks each node has
  for (const int rank : ranks) ++nodes[rank / per_node];
  int fewest = static_cast<int>(ranks.size());
  for (const auto& [node, count] : nodes) fewest = std::min(fewest, count);
  return {.ranks = static_cast<int>(ranks.size()), .nodes = static_cast<int>(nodes.size()), .fewest = fewest};
}

Span widest_span(const Mesh& mesh, std::initializer_list<Axis> axes, int per_node) {
  return widest(mesh, per_node, [&](int rank) { return group_number(mesh, axes, rank); });
}

Span link_span(const Mesh& mesh, int stage, int per_node) {
  const int stages = mesh.stages().count, each = mesh.ranks() / stages, behind = (stage + 1) % stages;
  std::vector<Span> spans;
  for (int i = 0; i < each; ++i) spans.push_back(span_of({stage * each + i, behind * each + i}, per_node));
  return *std::max_element(spans.begin(), spans.end(), is_narrower);
}

Spans spans_of(const Mesh& mesh, const parallel::Groups& groups, int rank, int per_node) {
  const auto expert_group = [&](int other) {
    const int coordinate = mesh.coordinate(Axis::shard, other) / mesh.expert();
    return group_number(mesh, {Axis::shard}, other) * mesh.size(Axis::shard) + coordinate;
  };
  const auto expert_shards = [&](int other) {
    return group_number(mesh, {Axis::shard, Axis::context}, other) * mesh.expert() + mesh.expert_coordinate(other);
  };
  Spans spans = {{groups.replicas->name(), widest_span(mesh, {Axis::replicate}, per_node)},
                 {groups.shards->name(), widest_span(mesh, {Axis::shard, Axis::context}, per_node)},
                 {groups.context->name(), widest_span(mesh, {Axis::context}, per_node)},
                 {groups.tensor->name(), widest_span(mesh, {Axis::tensor}, per_node)},
                 {groups.expert->name(), widest(mesh, per_node, expert_group)},
                 {groups.stages->name(), widest_span(mesh, {Axis::pipeline}, per_node)}};
  if (groups.expert_data) spans.emplace_back(groups.expert_data->name(), widest(mesh, per_node, expert_shards));
  const int stages = mesh.stages().count, stage = mesh.coordinate(Axis::pipeline, rank);
  for (std::size_t m = 0; m < parallel::kMessages; ++m) {
    if (groups.behind[m]) spans.emplace_back(groups.behind[m]->name(), link_span(mesh, stage, per_node));
    if (groups.before[m]) spans.emplace_back(groups.before[m]->name(), link_span(mesh, (stage + stages - 1) % stages, per_node));
  }
  return spans;
}

Span find_span(const Spans& spans, std::string_view group) {
  const auto found = std::find_if(spans.begin(), spans.end(), [&](const auto& known) { return known.first == group; });
  require(found != spans.end(), "plan: no group ", group);
  return found->second;
}

Sent sent_of(Span span, std::string_view op, double bytes) {
  if (span.nodes == 1) return {.nvlink_bytes = bytes};
  const double leaving = op == "all_to_all" ? bytes * (span.ranks - span.fewest) / (span.ranks - 1) : bytes / span.fewest;
  return {.nvlink_bytes = bytes - leaving, .network_bytes = leaving};
}

double fetch_seconds(const Gpu& gpu, double bytes) { return kFetchS + bytes / gpu.nvlink_bytes_per_s; }

bool network_decides(const Gpu& gpu, Span span, std::string_view op, double bytes) {
  const Sent sent = sent_of(span, op, bytes);
  return sent.network_bytes / gpu.network_bytes_per_s > sent.nvlink_bytes / gpu.nvlink_bytes_per_s;
}

double exchange_seconds(const Gpu& gpu, Span span, std::string_view op, double bytes, bool joins) {
  if (span.ranks == 1) return 0;
  const Sent sent = sent_of(span, op, bytes);
  const double transfer = std::max(sent.nvlink_bytes / gpu.nvlink_bytes_per_s, sent.network_bytes / gpu.network_bytes_per_s);
  if (joins) return transfer;
  return kStartS + (span.ranks - span.nodes) * kNvlinkStepS + (span.nodes - 1) * kNetworkStepS + transfer;
}

}  // namespace octet::plan
