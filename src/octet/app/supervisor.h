// `octet launch --supervise` keeps a run going. After a crash, a kill or a lost peer it ends the other ranks and starts all of
// them again, and they resume from the newest checkpoint. restart_budget.h says when it gives up. telemetry/attempts.h and
// rank_logs.h describe the files that it leaves in the run folder.
//
// On several hosts, one supervisor runs on each: a node. The node that the others have found coordinates: it gives orders and
// judges how an attempt ended. The others follow. If the coordinator is lost, they end their ranks and search for another one:
// the lowest node that they reach. Only the node that creates the file of an attempt may start it, so the two sides of a
// divided network cannot both continue.
//
// The file of an attempt belongs to the node that has created it. When the next attempt has a file, it belongs to the node that
// has created that one. A node that has lost the coordinator cannot tell whether the coordinator is dead or cannot be reached.
// So it writes into the coordinator's file only when the next attempt has a file, or when it gives the run up and the counter
// in run.lock has not grown (lock_watch.h). Before it begins an attempt, a side with fewer than half of the hosts that ran
// ranks also waits until the counter no longer grows.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/app/exclude_command.h"
#include "octet/app/host_list.h"
#include "octet/app/lock_watch.h"
#include "octet/app/node_network.h"
#include "octet/app/node_ranks.h"
#include "octet/app/restart_budget.h"
#include "octet/app/roster.h"
#include "octet/app/run_metrics.h"
#include "octet/app/stall.h"
#include "octet/base/clock.h"
#include "octet/telemetry/attempts.h"

namespace octet::app {

// How long ranks have for a last checkpoint if others are to take their place.
inline constexpr double kSaveS = 20;
// How long after SIGKILL a node that has not reported the end of its ranks counts as lost.
inline constexpr double kLateS = 10;

struct SupervisorOptions {
  int ranks = 1;                     // on each host
  std::vector<std::string> command;  // "train RUN.toml ..."
  std::filesystem::path config_file;  // RUN.toml, and its text as the job began with it
  std::string config;
  bool begins_as_told = false;       // the command has another checkpoint.resume than "auto"
  std::filesystem::path run_folder;
  double grace_s = 2;  // what the other ranks have to end by themselves after one failed
  RestartLimits limits;
  HostList hosts = {.hosts = {"127.0.0.1"}};  // one: this machine alone
  int spares = 0;                             // hosts that run no ranks as long as the others live
  int min_hosts = 1;                          // with fewer, the run waits and then ends with 78
  std::string on_exclude;                     // of ExcludeCommand
  int exclude_stragglers = 0;                 // slow intervals after which a spare takes the host's place; 0: never
  bool gate = false;                          // each host is checked before its ranks start (gate.h)
  int gpus = 0;                               // that the ranks of a host use
  int replicas = 1;                           // of each snapshot, on other hosts
  double join_timeout_s = 300;                // how long hosts are waited for
  double silence_s = 5;                       // a host that says nothing for this long is lost
  double stall_s = 60;                        // of StallWatch
  int metrics_port = 0;                       // of RunMetrics; 0: none
  std::string metrics_address;
  std::string interface = "auto";             // of this host's address, as comm.interface
  bool needs_token = true;                    // to join from another host
  DataMesh mesh;                              // of all ranks
  // As of ProcessGroupOptions; `note` is also called with what the supervisor does.
  std::function<void(int rank, StandardStream stream, std::string_view line)> output;
  std::function<void(std::string_view sentence)> note;
};

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options);
  // Returns when the run is finished, was asked to end, or cannot continue: the exit code of the last attempt. Throws
  // Error{config} and Error{peer} if this host cannot take part.
  int run();

 private:
  struct Member {
    bool here = false;
    NodeJoin join;
    bool runs = false;       // ranks of the attempt under way
    bool has_begun = false;  // to run them: its gate, if it has one, is over
    bool asked = false;      // to leave the run
  };

  int nodes() const { return static_cast<int>(options_.hosts.hosts.size()); }
  int me() const { return options_.hosts.mine; }
  int wanted() const { return nodes() - options_.spares; }
  const std::string& host_of(int node) const;
  std::string name_of(int node) const;                       // "node1 (host1)"
  std::string names_of(const std::vector<int>& nodes) const;  // the same of several
  Member& member(int node) { return members_[static_cast<std::size_t>(node)]; }
  // Whether the node can run ranks.
  bool is_ready(int node) const {
    const Member& member = members_[static_cast<std::size_t>(node)];
    return member.here && !member.asked && member.join.port > 0 && !roster_.is_unfit(node);
  }
  static constexpr double kLongestTurnS = 0.5;  // between two looks at the clock
  // Waits like NodeRanks::turn(), and returns what other nodes have sent.
  std::vector<NodeEvent> turn(double at_most_s);
  NodeJoin own_join();
  // Returns a free port at this node's address, or 0 as long as this host does not have that address.
  int own_port();

  // What a coordinator does (supervisor.cpp, supervisor_gather.cpp, supervisor_end.cpp). coordinate() returns nothing if another
  // node has taken over.
  std::optional<int> coordinate();
  enum class Gathered : std::uint8_t { yes, too_few, unfit, asked, left, replaced, found };  // found: follow that node
  Gathered gather(bool first);
  void close_all();  // connections from other nodes, when this one does not coordinate any more
  bool is_replaced();
  // Whether the newest attempt in the folder is of another job and may still run, on hosts that this node does not reach.
  bool other_job_may_run();
  // Looks at run.lock. If it cannot be read and `late` is true, ends the run, because nobody knows then whether others train.
  void watch_lock(bool late);
  // Whether most of the hosts that ran ranks are missing. They may begin the next attempt by themselves.
  bool is_outnumbered() const;
  // Whether this node may write the file of the newest attempt (see above).
  bool is_own_attempt() const { return ended_.empty() || ended_.back().coordinator == me(); }
  // Whether hosts were asked to leave, and the remaining ones do not suffice.
  bool too_many_leave() const;
  // Chooses the nodes and writes the attempt down. Returns false if another node has begun it. On entry, `has_file` is about
  // the previous attempt, on return about this one.
  bool begin(telemetry::Attempt& attempt, bool& has_file);
  // Gives the attempt a number and a file. Returns false if another node has begun a newer attempt. Throws SystemError.
  bool take_number(telemetry::Attempt& attempt);
  bool is_of_another(const telemetry::Attempt& attempt) const;
  // Whether a job that was started after this one has trained in the same folder, as when this host froze for long.
  bool is_of_later_job(const telemetry::Attempt& attempt) const;
  // Reports that a node runs no ranks any more because its gate has found a fault.
  void exclude_unfit(int node, std::string_view what);
  // The nodes that are here and run no ranks because of a fault.
  std::vector<telemetry::ExcludedHost> excluded() const;
  // Whether the run can continue with this many hosts.
  bool suffice(int hosts) const;
  int fewest() const;  // that suffice
  // Returns why the run cannot continue if too many hosts are unfit; "": it can.
  std::string too_few_fit() const;
  // Reports the nodes that ran ranks and no longer do because they failed too often. `has_file` is about the attempt that
  // ended.
  void exclude_suspects(const std::vector<int>& ran_before, bool has_file);
  // Ends this supervisor, which was asked to end, and also the run if the other hosts cannot continue.
  int leave_between_attempts(bool has_file);
  // Corrects the file of the newest attempt, which says that the run restarts, and ends the run.
  int end_between_attempts(bool has_file, ExitCode code, const std::string& next);
  void give_orders(const telemetry::Attempt& attempt);
  // Where the ranks and gates of other hosts reach the node's ReplicaServer.
  std::string replica_place(int node) const;
  // Returns where the gate of a node measures its links; it runs ranks.
  std::vector<std::string> link_places(int node) const;
  // Excludes a host whose link is slow, when all gates of the attempt have reported.
  void handle_links(int node, const LinkReport& report);
  // Returns where the ranks of a node send their snapshots, and where they find snapshots that they lack.
  checkpoint::ReplicaPlaces replica_places(int node) const;
  void run_attempt(telemetry::Attempt& attempt);
  void handle(const NodeEvent& event);
  void handle_end(int node, const NodeEnd& end);
  void lose(int node, std::string_view how);
  void lose_late();
  static std::string what_is_late();
  // Ends this supervisor, because its ranks do not end.
  [[noreturn]] void give_up_own_ranks();
  // Whether the node still runs the gate that comes before its ranks.
  bool is_in_gate(int node) const;
  void end_stall(const Stall& stall);
  int node_of(int rank) const;
  bool runs_ranks(int node) const { return std::find(chosen_.begin(), chosen_.end(), node) != chosen_.end(); }
  void stop_others(double grace_s);
  bool can_grow();
  // Lets a spare take the place of a node with a straggler (supervisor_exclude.cpp).
  void exclude_straggler(int ranks);
  // Whether the hosts that were not asked to leave suffice. Waits a little, because a scheduler that ends the job asks all
  // hosts, but not at the same moment.
  bool others_go_on();
  // Reads from the run folder which restarts this job has had, whichever node ordered them, and whether it has loaded and
  // saved.
  void look_back();
  void judge(telemetry::Attempt& attempt, RestartBudget::Decision& decision);
  int finish(int code);
  bool pause(double seconds);
  void say_recovered();
  // Tells the other nodes once that the attempt has loaded, once that it has finished a step, and once that a checkpoint exists,
  // so that the next coordinator knows how to begin again.
  void tell_progress(int ranks);
  // The state of the job, without ranks.
  std::string news() const;
  // Records from which step and how fast rank 0 began, and later how the attempt went.
  void record_start(telemetry::Attempt& attempt, const telemetry::RankPage& page) const;
  void record_times(telemetry::Attempt& attempt, const telemetry::RankPage& page);
  double since_begin(std::int64_t ns) const;  // of the attempt, in seconds
  // Ends the newest attempt of a lost coordinator in its file, as far as this node knows the facts. Returns whether that
  // attempt has a file into which begin() writes.
  bool end_orphan();

  // Records (supervisor_record.cpp).
  // Writes the attempt down, after those that wait. If the disk is full, the attempt waits.
  void write_down(const telemetry::Attempt& attempt);
  void write_waiting();
  // Frees reserved space for the last record of the run on a full disk.
  void free_room();
  // Why the last attempt to read or write the run folder failed; {}: it succeeded.
  struct Trouble {
    std::string text;
    int number = 0;  // errno; 0: not known
  };
  // Calls a function that reads or writes the run folder, and returns whether it succeeded. A full disk must not end the run.
  // Reports the same trouble once.
  bool record(Trouble& trouble, const std::function<void()>& call);
  void say_all_attempts();

  // What the other nodes do (supervisor_member.cpp).
  enum class Role : std::uint8_t { coordinator, member, asked, over };
  Role search();
  enum class Answer : std::uint8_t { none, welcome, searching, another, taken };  // taken: another supervisor is this node there
  Answer ask(const NodeAddress& address, std::optional<NodeAddress>& other, std::string& trouble, double answer_s);
  // The nodes that a search asks, in this order: `first`, if there is one, and then those below `below`.
  std::vector<NodeAddress> addresses_to_ask(const std::optional<NodeAddress>& first, int below) const;
  // Finds the nodes that cannot be reached after the loss of the coordinator, while the ranks of this node end. Returns before
  // `until`.
  void find_absent(Clock::time_point until);
  // Asks one of the missing nodes, another one each time. Returns whether this node has found a coordinator to follow.
  bool ask_a_missing_node();
  void hold(const NodeEvent& event);
  std::optional<int> follow();
  std::optional<int> handle_as_member(const NodeEvent& event);
  // Takes over what an order says of the job. Throws Error{peer} if this node took part in another one.
  void update_job(const Order& news);
  void send_pages();

  SupervisorOptions options_;
  telemetry::Attempts attempts_;
  LocalToken token_;
  std::unique_ptr<checkpoint::ReplicaServer> replicas_;  // null: one host, or the run has none
  NodeRanks ranks_;
  std::unique_ptr<NodeNetwork> network_;  // null: one host
  std::unique_ptr<RunMetrics> metrics_;   // null: nobody asked for them

  // The members below serve the coordinator. members_ has an entry for every node, this one included.
  std::vector<Member> members_;
  Roster roster_;
  RestartBudget budget_;
  ExcludeCommand exclude_command_;
  struct Fault {
    int code = 0;
    std::string what;
  };
  std::map<int, Fault> faults_;  // of each node that has ended an attempt, its last one
  std::map<int, std::string> why_unfit_, why_slow_;  // of each node of which the roster says so
  AttemptVerdict verdict_;
  std::map<int, std::vector<NodeLink>> links_;  // of this attempt, by the node whose gate has measured them
  std::vector<int> found_unfit_;     // nodes that ran a gate in this attempt
  std::vector<int> chosen_;          // nodes that run ranks, in the order of their ranks; all nodes know them
  std::optional<DataMesh> smaller_;  // of the attempt, if hosts are missing
  std::string job_;
  std::int64_t attempt_ = 0;
  NextSave save_to_grow_;                       // after a missing host has come back
  bool stopping_ = false;                       // the nodes have been told to end their ranks
  std::optional<Clock::time_point> late_at_;    // when all nodes must have reported the end
  bool regrouping_ = false;                     // whether the ranks end without a fault, because a host has come back
  NextSave save_to_exclude_;                    // after a straggler has been slow for long enough
  std::string without_straggler_;               // why the next attempt has other hosts; "": for another reason
  bool left_ = false;                           // a host was asked to leave, and saved
  std::int64_t begin_ns_ = 0;                   // of the attempt
  std::int64_t ended_ns_ = 0;                   // of the attempt before, if this node has coordinated since; 0: it has not
  std::optional<Clock::time_point> failed_at_;  // when the fault of the attempt before was noticed, until the run is back
  std::optional<Clock::time_point> fault_;      // of this attempt
  std::int64_t last_step_ns_ = 0;               // when the last step before the restart ended; 0: this node does not know
  bool has_begun_ = false;                      // an attempt of the job has begun
  bool has_loaded_ = false;                     // an attempt has reached `loading`, so no older run in the folder forbade it
  bool has_saved_ = false;                      // an attempt of the job has saved a checkpoint
  bool has_trained_ = false;                    // an attempt of the job has finished a step
  bool made_room_ = false;                      // this supervisor has made attempts/.room
  // The attempts that this node has coordinated, and the last one of each coordinator that was lost.
  std::vector<telemetry::Attempt> ended_;
  bool is_orphan_ = false;                   // ended_.back() is of a lost coordinator, and its end is not written down
  std::vector<telemetry::Attempt> waiting_;  // attempts to write down when the disk has room again
  Clock::time_point tried_at_;               // the last time
  std::set<std::int64_t> without_file_;      // numbers of attempts that could not be written down when they began
  Trouble read_trouble_, write_trouble_;
  std::string port_trouble_;               // why own_port() found no port the last time
  Clock::time_point born_ = Clock::now();  // the search for a coordinator counts as waiting for the others

  // The members below serve a node that follows the coordinator or searches for it.
  LockWatch lock_watch_{options_.run_folder};
  int asked_node_ = 0;                 // by ask_a_missing_node(), the last time
  std::int64_t newest_attempt_ = 0;    // the highest number that this node has heard of
  std::int64_t recorded_attempt_ = 0;  // the highest of those with a file in attempts/, which only one node can create
  std::optional<NodeAddress> coordinator_;  // if it is lost, it stays here until this node begins an attempt of its own
  std::optional<NodeAddress> lost_;
  std::string lost_how_;  // "has been silent for 5 s"
  int over_code_ = 0;
  std::vector<int> absent_;  // of find_absent(), for the next search
  Clock::time_point absent_at_;
  std::vector<NodeEvent> early_;  // messages that arrived before this node knew its role
  std::set<std::string> refusals_;  // of nodes that this one has asked; each is printed once
  Clock::time_point pages_sent_;
  bool fresh_ = true;       // has not found a coordinator yet
  bool took_part_ = false;  // in job_: has coordinated it or followed
};

}  // namespace octet::app
