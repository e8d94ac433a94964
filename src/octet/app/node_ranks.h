// The ranks that this host runs, attempt after attempt: their processes, their pages and their logs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "octet/app/gate_process.h"
#include "octet/app/job_memory.h"
#include "octet/app/node_messages.h"
#include "octet/app/process_group.h"
#include "octet/app/rank_logs.h"
#include "octet/checkpoint/replica_server.h"
#include "octet/checkpoint/snapshot_memory.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

struct NodeRanksOptions {
  std::filesystem::path run_folder;
  std::filesystem::path config_file;  // RUN.toml, whose text comes with each order
  int node = 0;
  int most_ranks = 1;  // of all hosts
  double grace_s = 2;  // how long the other ranks have to end by themselves after one failed
  std::string token;   // of local_ranks()
  bool gate = false;   // this host is checked before its ranks start
  int gpus = 0;        // that its ranks use
  checkpoint::ReplicaServer* replicas = nullptr;  // of this host
  // As of ProcessGroupOptions.
  std::function<void(int rank, StandardStream stream, std::string_view line)> output;
  std::function<void(std::string_view sentence)> note;
};

class NodeRanks {
 public:
  explicit NodeRanks(NodeRanksOptions options);

  // Starts the ranks of an attempt, perhaps none. The gate runs before them: a full gate until this host has passed one, then
  // quick ones. A host without ranks runs a full gate, so that it can replace another host without delay. If the ranks cannot
  // be started, or this host was asked to leave before, news() says so.
  void start(const Order& order);
  // Waits until something happens to the ranks, `also` can be read, a signal arrives, or at_most_s have passed.
  void turn(int also, double at_most_s);
  bool running() const { return gate_ || (group_ && group_->running()); }
  bool in_gate() const { return gate_.has_value(); }
  // The fault that the gate has found on this host; "": none.
  const std::string& unfit() const { return unfit_; }
  // Returns what is to be reported about the attempt since the last call: first that a rank has failed, then that all have
  // ended.
  std::optional<NodeEnd> news();
  // Returns once what the gate before these ranks has measured of this host's links.
  std::optional<LinkReport> links() { return std::exchange(links_, std::nullopt); }
  // Ends the ranks. A gate continues, because its result is worth the wait, but no ranks follow it.
  void end(double grace_s);
  // Makes the threads of all ranks write their stacks into the logs of the ranks, and adds what the kernel knows about them.
  void write_stacks();
  // Kills the ranks and waits for their end, like ~ProcessGroup(). A gate continues.
  void kill();
  // Whether a signal has asked this host to leave the run.
  bool asked() const { return asked_; }
  std::optional<Clock::time_point> failed_at() const { return group_ ? group_->failed_at() : std::nullopt; }

  // A page for each rank of the run. The ranks of this host write their own pages. The caller may fill in those of other hosts.
  telemetry::RankPages& pages() { return pages_; }
  const Order& order() const { return order_; }
  // Writes a sentence to the console and to this host's log.
  void say(std::string_view sentence);

 private:
  // Returns the kind of gate that must run before these ranks, if any.
  std::optional<GateKind> gate_of(const Order& order) const;
  void prepare_and_start();
  void start_ranks();
  // Says once that the file on this host says something else, because whoever edited it may expect the ranks to read it.
  void tell_of_edit();
  // Ends the attempt on this host before ranks run.
  void end_early(NodeEnd end);
  // Calls end_early() if `start` fails, because the next attempt may have enough memory, processes and descriptors again.
  void or_end_early(const std::function<void()>& start);
  void end_gate();
  Cause cause() const;
  std::vector<int> unreachable() const;
  // Returns a sentence that says which rank has failed, how, and the last error that it printed.
  std::string what() const;
  bool is_out_of_memory() const;

  NodeRanksOptions options_;
  SignalPipe signals_;
  RankLogs logs_;
  telemetry::RankPages pages_;
  std::shared_ptr<checkpoint::SnapshotMemory> snapshots_;
  Order order_;
  std::optional<JobMemory> config_;
  JobMemory copies_{kCopiesOfJob};
  std::string told_config_;  // the text of the last edit that was told
  std::optional<ProcessGroup> group_;
  std::optional<GateProcess> gate_;
  std::optional<NodeEnd> early_end_;  // to be reported
  std::optional<LinkReport> links_;   // to be reported
  std::string unfit_;
  bool has_passed_ = false;  // a full gate
  bool ranks_wait_ = false;  // for the gate
  std::string what_;  // the sentence about the failure of this attempt
  std::map<int, std::string> errors_;         // the last error that each rank has printed
  std::optional<std::int64_t> memory_kills_;  // before the attempt
  bool told_failure_ = false, told_end_ = false, asked_ = false, writes_stacks_ = false;
};

}  // namespace octet::app
