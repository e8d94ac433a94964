#include "octet/app/roster.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "octet/base/require.h"

namespace octet::app {
namespace {

constexpr std::size_t kAttempts = 3;
constexpr std::ptrdiff_t kFailures = 2;

bool contains(const std::vector<int>& nodes, int node) { return std::find(nodes.begin(), nodes.end(), node) != nodes.end(); }

void put(std::set<int>& nodes, int node, bool inside) {
  if (inside)
    nodes.insert(node);
  else
    nodes.erase(node);
}

}  // namespace

void Roster::blame(int node) {
  blamed_.push_back(node);
  if (blamed_.size() > kAttempts) blamed_.pop_front();
}

void Roster::set_unfit(int node, bool unfit) { put(unfit_, node, unfit); }

void Roster::set_slow(int node, bool slow) { put(slow_, node, slow); }

bool Roster::is_suspect(int node) const { return std::count(blamed_.begin(), blamed_.end(), node) >= kFailures; }

void Roster::leave_out_suspect(const std::vector<int>& here, const std::vector<int>& ran_before,
                               const std::function<bool(int number)>& suffice) {
  const std::optional<int> left_out_before = std::exchange(left_out_, std::nullopt);
  const auto suspect = std::find_if(here.begin(), here.end(), [&](int node) {
    return is_suspect(node) && (contains(ran_before, node) || left_out_before == node);
  });
  if (suspect != here.end() && suffice(static_cast<int>(here.size()) - 1)) left_out_ = *suspect;
}

void Roster::take_back(int node) {
  if (left_out_ == node) left_out_.reset();
}

std::vector<int> Roster::choose(const std::vector<int>& here, const std::vector<int>& ran_before, int wanted) const {
  std::vector<int> nodes = here;
  std::erase_if(nodes, [&](int node) { return is_unfit(node) || is_left_out(node); });
  const auto order = [&](int node) { return std::tuple(is_suspect(node) || is_slow(node), !contains(ran_before, node), node); };
  std::sort(nodes.begin(), nodes.end(), [&](int a, int b) { return order(a) < order(b); });
  nodes.resize(std::min(nodes.size(), static_cast<std::size_t>(wanted)));
  std::sort(nodes.begin(), nodes.end());
  // A node that ran ranks before runs the same ones again, because it has their snapshots in memory.
  std::vector<int> places(nodes.size(), -1);
  for (std::size_t i = 0; i < std::min(nodes.size(), ran_before.size()); ++i) {
    if (contains(nodes, ran_before[i])) places[i] = ran_before[i];
  }
  for (const int node : nodes) {
    if (!contains(places, node)) *std::find(places.begin(), places.end(), -1) = node;
  }
  return places;
}

bool NextSave::has_come(bool wanted, const telemetry::RankPage& page) {
  // Until its first step, rank 0 may still report the checkpoint from which it continues, which is not a new one.
  if (!wanted || page.first_step_ns == 0) {
    step_before_.reset();
    return false;
  }
  if (!step_before_) step_before_ = page.saved_step;
  return page.saved_step > *step_before_;
}

void AttemptVerdict::weigh(Weight weight, int node, int code, std::string_view what, Cause cause) {
  // A rank that misses a peer is reported before its sentence is known.
  if (weight == weight_ && code == code_ && what_.empty()) what_ = what;
  if (weight <= weight_) return;
  weight_ = weight;
  node_ = node;
  code_ = code;
  what_ = what;
  cause_ = cause;
}

void AttemptVerdict::rank_failed(int node, int code, std::string_view what, Cause cause) {
  if (code == 0) return;
  if (cause == Cause::storage) without_storage_.insert(node);
  const bool by_itself = code != static_cast<int>(ExitCode::peer) && code != static_cast<int>(ExitCode::preempted);
  const Weight weight = cause != Cause::unknown ? Weight::failed_for_a_cause : by_itself ? Weight::failed : Weight::misses_peer;
  weigh(weight, by_itself ? node : -1, code, what, cause);
}

void AttemptVerdict::node_lost(int node, std::string_view what) {
  weigh(Weight::lost_node, node, static_cast<int>(ExitCode::peer), what);
}

void AttemptVerdict::link_broken(int node, int other, std::string_view what) {
  broken_links_.insert(std::minmax(node, other));
  weigh(Weight::broken_link, -1, static_cast<int>(ExitCode::peer), what);
}

int AttemptVerdict::node() const {
  if (cause_ == Cause::storage && without_storage_.size() > 1) return -1;
  if (weight_ != Weight::broken_link) return node_;
  std::map<int, int> links;
  for (const auto& [node, other] : broken_links_) {
    ++links[node];
    ++links[other];
  }
  return std::max_element(links.begin(), links.end(), [](const auto& a, const auto& b) {
           return std::pair(a.second, a.first) < std::pair(b.second, b.first);
         })->first;
}

void AttemptVerdict::stalled(int node, std::string_view what) {
  weigh(Weight::stalled, node, static_cast<int>(ExitCode::stalled), what);
}

std::optional<DataMesh> shrunk(const DataMesh& mesh, int ranks) {
  for (int data = std::min(mesh.replicate * mesh.shard, ranks / mesh.rest); data >= 1; --data) {
    if (mesh.global_batch % (data * mesh.micro_batch) != 0) continue;
    DataMesh smaller = mesh;
    smaller.shard = data % mesh.shard == 0 ? mesh.shard : data;
    smaller.replicate = data / smaller.shard;
    if (smaller.shard % mesh.expert == 0) return smaller;
  }
  return std::nullopt;
}

}  // namespace octet::app
