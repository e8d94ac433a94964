// Decides which nodes run ranks in the next attempt, and what ended the last one. Pure bookkeeping of the coordinator.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/app/restart_budget.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

class Roster {
 public:
  // Records which node is to blame for the end of an attempt; -1: none.
  void blame(int node);
  // Whether the node is to blame for two of the last three attempts.
  bool is_suspect(int node) const;
  // A node whose gate has found a fault runs no ranks until `unfit` is taken back.
  void set_unfit(int node, bool unfit);
  bool is_unfit(int node) const { return unfit_.contains(node); }
  // A node with a straggler runs ranks only if there are too few others.
  void set_slow(int node, bool slow);
  bool is_slow(int node) const { return slow_.contains(node); }
  int unfit() const { return static_cast<int>(unfit_.size()); }
  // Excludes a suspect that ran ranks before from choose(), if `suffice(number)` says that the run can continue with the other
  // nodes that are here. The suspect stays excluded as long as it is a suspect and the others suffice, or until take_back(). A
  // suspect that was away, and so did not run before, is not excluded.
  void leave_out_suspect(const std::vector<int>& here, const std::vector<int>& ran_before,
                         const std::function<bool(int number)>& suffice);
  bool is_left_out(int node) const { return left_out_ == node; }
  void take_back(int node);
  // Returns the nodes that run ranks next, in the order of their ranks: at most `wanted` of those that are here. Suspects and
  // slow nodes are chosen last; among the others, those that ran before are chosen first. A node that ran ranks before keeps
  // them, unless too few nodes are left.
  std::vector<int> choose(const std::vector<int>& here, const std::vector<int>& ran_before, int wanted) const;

 private:
  std::deque<int> blamed_;  // of the last three attempts
  std::set<int> unfit_, slow_;
  std::optional<int> left_out_;  // only one node can be to blame for two of three attempts
};

// Delays a change of the hosts until the run has saved again, so that hosts that come and go cost little.
class NextSave {
 public:
  // Whether the run has saved a checkpoint since the change was first wanted. `page` is that of rank 0. A change that is no longer
  // wanted starts over.
  bool has_come(bool wanted, const telemetry::RankPage& page);

 private:
  std::optional<std::int64_t> step_before_;
};

// What ended an attempt, according to the reports of its nodes. Ranks that miss a peer end too, so the weightiest report
// counts. From the weightiest: a stall, after which all ranks are killed; a rank that failed for a known cause; a rank that
// failed by itself; a lost node; two nodes that cannot reach each other; ranks that missed a peer or were asked to end. Among
// equals, the first counts. If it came without a sentence, the first sentence of its equals with the same code counts.
class AttemptVerdict {
 public:
  void rank_failed(int node, int code, std::string_view what, Cause cause = Cause::unknown);
  void node_lost(int node, std::string_view what);
  void link_broken(int node, int other, std::string_view what);
  void stalled(int node, std::string_view what);  // -1: no node is to blame

  bool any() const { return weight_ != Weight::none; }
  int code() const { return code_; }
  const std::string& what() const { return what_; }
  // -1 if no node is to blame, as when several nodes cannot read the storage. Of the two ends of a broken link, the one with
  // more broken links is to blame. If both have as many, it is the node with the higher number, so that the same end is blamed
  // again.
  int node() const;
  Cause cause() const { return cause_; }

 private:
  enum class Weight : std::uint8_t { none, misses_peer, broken_link, lost_node, failed, failed_for_a_cause, stalled };
  void weigh(Weight weight, int node, int code, std::string_view what, Cause cause = Cause::unknown);

  Weight weight_ = Weight::none;
  int code_ = 0, node_ = -1;
  Cause cause_ = Cause::unknown;
  std::string what_;
  std::set<int> without_storage_;               // the nodes that could not read
  std::set<std::pair<int, int>> broken_links_;  // the lower node first
};

// The mesh of a run, as far as a change of the number of ranks can change it.
struct DataMesh {
  int replicate = 1, shard = 1;
  int rest = 1;                           // pipeline x context x tensor
  int expert = 1;                         // divides shard
  int global_batch = 1, micro_batch = 1;  // sequences
  int ranks() const { return replicate * shard * rest; }
};
// Returns the largest mesh with at most `ranks` ranks that keeps `rest` and whose replicate x shard divides the global batch.
// Removes replicas first, then shards. Returns nothing if there is none.
std::optional<DataMesh> shrunk(const DataMesh& mesh, int ranks);

}  // namespace octet::app
