#include "octet/plan/cluster.h"

#include <algorithm>
#include <set>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

// The latency of a collective's start, of a ring step within a node and of a ring step between nodes. Source: NCCL's tuning model for
// rings with the Simple protocol (graph/tuning.cc); the value between nodes differs between versions. As a check, 1 MiB between four
// H200 GPUs took 16.7 us, and this model predicts 21 us.
constexpr double kStartS = 8.4e-6, kNvlinkStepS = 3.4e-6, kNetworkStepS = 9.6e-6;
// An estimate of what a copy costs beside its bytes.
constexpr double kFetchS = 8e-6;

}  // namespace

Span span_of(const std::vector<int>& ranks, int per_node) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(rank / per_node);
  return {.ranks = static_cast<int>(ranks.size()), .nodes = static_cast<int>(nodes.size())};
}

Spans spans_of(const parallel::Mesh& mesh, const parallel::Groups& groups, int rank, int per_node) {
  using parallel::Axis;
  Spans spans;
  const auto add = [&](const comm::Group& group, const std::vector<int>& ranks) {
    spans.emplace_back(group.name(), span_of(ranks, per_node));
  };
  add(*groups.replicas, mesh.group({Axis::replicate}, rank));
  add(*groups.shards, mesh.group({Axis::shard, Axis::context}, rank));
  add(*groups.context, mesh.group({Axis::context}, rank));
  add(*groups.tensor, mesh.group({Axis::tensor}, rank));
  add(*groups.expert, mesh.expert_group(rank));
  if (groups.apart) add(*groups.apart, mesh.expert_shards(rank));
  const std::vector<int> stages = mesh.group({Axis::pipeline}, rank);
  add(*groups.stages, stages);
  const auto stage = static_cast<std::size_t>(mesh.coordinate(Axis::pipeline, rank));
  const auto beside = [&](std::size_t distance) { return std::vector<int>{rank, stages[(stage + distance) % stages.size()]}; };
  for (std::size_t m = 0; m < parallel::kMessages; ++m) {
    if (groups.behind[m]) add(*groups.behind[m], beside(1));
    if (groups.before[m]) add(*groups.before[m], beside(stages.size() - 1));
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
  const double in_node = static_cast<double>(span.ranks) / span.nodes;
  const double leaving = op == "all_to_all" ? bytes * (span.ranks - in_node) / (span.ranks - 1) : bytes / in_node;
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
