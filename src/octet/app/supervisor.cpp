#include "octet/app/supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/require.h"
#include "octet/base/utc.h"
#include "octet/comm/environment.h"
#include "octet/comm/socket.h"
#include "octet/telemetry/format.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

constexpr double kWriteAgainS = 1;  // between two tries to write on a full disk
constexpr double kTextS = 2;        // how long it waits for the text of another node's new file in attempts/
constexpr std::int64_t kClocksS = 60;  // by which the clocks of two hosts may differ without a warning
constexpr int kAsked = static_cast<int>(ExitCode::preempted);

// The command that goes on from the newest checkpoint, whatever the first attempt began with.
std::vector<std::string> resuming(const std::vector<std::string>& command) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == "--resume") {
      ++i;
    } else if (!command[i].starts_with("--resume=")) {
      result.push_back(command[i]);
    }
  }
  result.push_back("--resume=auto");
  return result;
}

// The command that begins again where the first attempt was told to begin, because nothing has been saved. What the attempt
// before has left is moved to history/, if the command does not go on from it. An older run cannot be there, because that attempt
// was not refused.
std::vector<std::string> beginning_again(std::vector<std::string> command) {
  command.push_back("--run.set_aside=true");
  return command;
}

// Says nothing if no rank has come so far that it knows of a checkpoint.
std::string text_of_checkpoint(const telemetry::Attempt& a) {
  if (a.checkpoint_step > 0) return concat("the newest checkpoint is of step ", a.checkpoint_step, "; ");
  return a.seconds.contains("training") ? "the newest checkpoint is not there yet; " : "";
}

// All nodes of a run have the same command, and so the same port. It does not depend on the absolute path of the folder, which
// may differ between hosts, nor on the token, so that a node with another token is refused with a reason. Runs whose commands
// name different folders hardly ever share a port.
int port_of_run(const SupervisorOptions& options) {
  RunningChecksum sum;
  sum.update(options.run_folder.string());
  return comm::kFirstPort + static_cast<int>(std::stoul(sum.hex().substr(0, 7), nullptr, 16) % comm::kPorts);
}

// Returns where this host listens: at its name in the list, unless that is a loopback address.
std::string own_host(const SupervisorOptions& options) {
  if (options.interface != "auto") return comm::address_on(options.interface);
  const std::vector<std::string>& hosts = options.hosts.hosts;
  const auto mine = static_cast<std::size_t>(options.hosts.mine);
  if (!hosts[mine].empty() && !comm::is_loopback(hosts[mine])) return hosts[mine];
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (i != mine && !hosts[i].empty()) return comm::address_towards(hosts[i]);
  }
  fail(ExitCode::config, "the address of this host is not known; set comm.interface");
}

// The options of which those of the host that coordinates count.
std::string launch_text(const SupervisorOptions& options) {
  return fmt::format("--spares {} --min-hosts {} --restarts {} --restarts-per-hour {} --exclude-stragglers {} --gate {}",
                     options.spares, options.min_hosts, options.limits.restarts, options.limits.per_hour,
                     options.exclude_stragglers, options.gate ? "on" : "off");
}

LocalToken token_of(const SupervisorOptions& options) {
  if (options.hosts.hosts.size() == 1) return LocalToken();
  return LocalToken(options.needs_token ? options.run_folder / ".token" : std::filesystem::path());
}

std::unique_ptr<checkpoint::ReplicaServer> replica_server(const SupervisorOptions& options, const LocalToken& token) {
  if (options.hosts.hosts.size() == 1 || options.replicas == 0) return nullptr;
  return std::make_unique<checkpoint::ReplicaServer>(
      checkpoint::ReplicaServer::Options{.host = own_host(options),
                                         .token = token.token(),
                                         .version = train::version_text(),
                                         .name = concat("node", options.hosts.mine)});
}

std::unique_ptr<NodeNetwork> network_of(const SupervisorOptions& options, const comm::Token& token) {
  try {
    return std::make_unique<NodeNetwork>(NodeNetwork::Options{.node = options.hosts.mine,
                                                              .nodes = static_cast<int>(options.hosts.hosts.size()),
                                                              .host = own_host(options),
                                                              .port = port_of_run(options),
                                                              .token = token,
                                                              .version = concat("octet launch ", train::version_text()),
                                                              .silence_s = options.silence_s});
  } catch (const Error& error) {
    if (!std::string_view(error.what()).ends_with(std::strerror(EADDRINUSE))) throw;
    fail(error.code(), error.what(), "; the port follows from run.output_dir = ", options.run_folder.string(),
         ". If another run on this host has a folder of that name, give this run the absolute path of its own");
  }
}

NodeRanksOptions ranks_options(const SupervisorOptions& options, const LocalToken& token, checkpoint::ReplicaServer* replicas) {
  return {.run_folder = options.run_folder,
          .config_file = options.config_file,
          .node = options.hosts.mine,
          .most_ranks = options.ranks * static_cast<int>(options.hosts.hosts.size()),
          .grace_s = options.grace_s,
          .token = token.variable(),
          .gate = options.gate,
          .gpus = options.gpus,
          .replicas = replicas,
          .output = options.output,
          .note = options.note};
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)),
      attempts_(options_.run_folder),
      token_(token_of(options_)),
      replicas_(replica_server(options_, token_)),
      ranks_(ranks_options(options_, token_, replicas_.get())),
      members_(options_.hosts.hosts.size()),
      budget_(options_.limits),
      exclude_command_(options_.on_exclude) {
  if (options_.metrics_port > 0)
    metrics_ = std::make_unique<RunMetrics>(options_.metrics_address, options_.metrics_port, options_.stall_s,
                                            ranks_.pages().first(ranks_.pages().ranks()));
  if (nodes() > 1) network_ = network_of(options_, token_.token());
}

int Supervisor::run() {
  if (!network_) return *coordinate();
  for (;;) {
    const Role role = search();
    if (role == Role::over) return over_code_;
    if (role == Role::asked) return kAsked;
    const std::optional<int> code = role == Role::coordinator ? coordinate() : follow();
    if (code) return *code;
  }
}

const std::string& Supervisor::host_of(int node) const {
  const Member& member = members_[static_cast<std::size_t>(node)];
  return member.join.name.empty() ? options_.hosts.hosts[static_cast<std::size_t>(node)] : member.join.name;
}

std::string Supervisor::name_of(int node) const { return concat("node", node, " (", host_of(node), ")"); }

int Supervisor::own_port() {
  try {
    const int port = free_port(network_ ? network_->address() : "127.0.0.1");
    port_trouble_.clear();
    return port;
  } catch (const Error& error) {
    if (std::exchange(port_trouble_, error.what()) != error.what())
      ranks_.say(concat(error.what(), "; this host runs no ranks until it can"));
    return 0;
  }
}

NodeJoin Supervisor::own_join() {
  return {.name = ProcessIdentity::mine().host,
          .host = network_ ? network_->address() : "127.0.0.1",
          .port = own_port(),
          .ranks = options_.ranks,
          .replicas_port = replicas_ ? replicas_->port() : 0,
          .command = fmt::format("{}", fmt::join(options_.command, " ")),
          .launch = launch_text(options_),
          .unfit = ranks_.unfit(),
          .utc_s = std::time(nullptr)};
}

std::vector<NodeEvent> Supervisor::turn(double at_most_s) {
  ranks_.turn(network_ ? network_->fd() : -1, std::min(at_most_s, kLongestTurnS));
  for (const std::string& failure : exclude_command_.failures()) ranks_.say(failure);
  return network_ ? network_->take() : std::vector<NodeEvent>();
}

std::optional<int> Supervisor::coordinate() {
  const bool first = std::exchange(fresh_, false);
  if (job_.empty()) job_ = comm::Token::random().hex().substr(0, 16);
  took_part_ = true;
  ended_ns_ = 0;
  bool has_file = coordinator_ && end_orphan();  // of the newest attempt
  look_back();
  for (Member& member : members_) member.here = member.runs = member.asked = false;
  member(me()) = {.here = true, .join = own_join()};
  roster_.set_unfit(me(), !ranks_.unfit().empty());
  why_unfit_[me()] = ranks_.unfit();
  if (network_) ranks_.say(concat(name_of(me()), " coordinates ", nodes(), " hosts"));
  record(write_trouble_, [&] { made_room_ = attempts_.keep_room() || made_room_; });
  for (const NodeEvent& event : std::exchange(early_, {})) handle(event);
  for (bool initial = first;; initial = false) {
    switch (gather(initial)) {
      case Gathered::yes:
        break;
      case Gathered::too_few:
        return end_between_attempts(has_file, ExitCode::peer, "stops: too few hosts are here");
      case Gathered::unfit:
        return end_between_attempts(has_file, ExitCode::unfit, concat("stops: ", too_few_fit()));
      case Gathered::asked:
        return leave_between_attempts(has_file);
      case Gathered::left:
        return end_between_attempts(has_file, ExitCode::preempted, telemetry::kAskedToEnd);
      case Gathered::found:
        close_all();
        return follow();
      case Gathered::replaced:
        close_all();
        return std::nullopt;
    }
    telemetry::Attempt attempt;
    if (!begin(attempt, has_file)) {
      close_all();
      return std::nullopt;
    }
    if (metrics_) {
      metrics_->set_ended(ended_);
      metrics_->begin(ranks_.pages().first(attempt.ranks));
    }
    run_attempt(attempt);
    RestartBudget::Decision decision;
    judge(attempt, decision);
    // Ranks of a newer attempt have taken the folder over, which is no reason to end the run.
    const bool replaced = network_ && attempt.code != 0 && !decision.restarts && is_replaced();
    if (metrics_) metrics_->end();
    if (replaced) {  // and has written down how this attempt ended
      ranks_.say(concat("attempt ", attempt.number, " ended with code ", attempt.code, "; another node coordinates"));
      close_all();
      return std::nullopt;
    }
    if (!decision.restarts) free_room();
    attempt.excluded = excluded();
    write_down(attempt);
    ended_.push_back(attempt);
    if (attempt.code != 0)
      ranks_.say(concat("attempt ", attempt.number, " ended with code ", attempt.code, " at step ", attempt.last_step, "; ",
                        text_of_checkpoint(attempt), attempt.next));
    const bool leaves = decision.restarts && ranks_.asked();  // the others go on
    if (decision.restarts && !leaves && pause(decision.wait_s)) continue;
    if (ended_.size() > 1) say_all_attempts();
    if (leaves) return kAsked;
    return decision.restarts ? leave_between_attempts(has_file) : finish(telemetry::code_of_run(attempt));
  }
}

void Supervisor::close_all() {
  for (int node = 0; node < nodes(); ++node) network_->close(node);
}

// Whether another node has begun a newer attempt, as when this host was cut off or stood still.
bool Supervisor::is_replaced() {
  bool replaced = false;
  record(read_trouble_, [&] {
    for (const telemetry::Attempt& attempt : attempts_.read()) {
      replaced = replaced || is_of_another(attempt) || is_of_later_job(attempt);
    }
  });
  return replaced;
}

// A job that another run has refused has finished no step.
bool Supervisor::is_of_later_job(const telemetry::Attempt& attempt) const {
  return took_part_ && attempt.job != job_ && attempt.number > newest_attempt_ && attempt.seconds.contains("first_step");
}

bool Supervisor::is_of_another(const telemetry::Attempt& attempt) const {
  return attempt.job == job_ && attempt.number > recorded_attempt_ && attempt.coordinator != me();
}

bool Supervisor::take_number(telemetry::Attempt& attempt) {
  const std::vector<telemetry::Attempt> all = attempts_.read();
  if (std::any_of(all.begin(), all.end(), [&](const telemetry::Attempt& other) { return is_of_another(other); })) return false;
  for (const telemetry::Attempt& earlier : all) newest_attempt_ = std::max(newest_attempt_, earlier.number);
  for (attempt.number = newest_attempt_ + 1; !attempts_.begin_as(attempt); ++attempt.number) {
    // Where a file system has no hard links, or no room, the file is there before its text.
    const std::optional<telemetry::Attempt> other = attempts_.find(attempt.number, kTextS);
    if (other && is_of_another(*other)) return false;
  }
  recorded_attempt_ = attempt.number;
  return true;
}

bool Supervisor::begin(telemetry::Attempt& attempt, bool& has_file) {
  std::vector<int> here;
  for (int node = 0; node < nodes(); ++node) {
    if (is_ready(node)) here.push_back(node);
  }
  const std::vector<int> ran_before = chosen_;
  const bool last_has_file = has_file;
  roster_.leave_out_suspect(here, ran_before, [&](int hosts) { return suffice(hosts); });
  std::erase_if(here, [&](int node) { return roster_.is_left_out(node); });
  const int most = std::min(static_cast<int>(here.size()), wanted());
  smaller_ = most < wanted() ? shrunk(options_.mesh, most * options_.ranks) : std::nullopt;
  const int ranks = smaller_ ? smaller_->ranks() : most * options_.ranks;
  chosen_ = roster_.choose(here, ran_before, (ranks + options_.ranks - 1) / options_.ranks);
  attempt = {.ranks = ranks,
             .job = job_,
             .coordinator = me(),
             .coordinator_host = network_ ? member(me()).join.host : "",
             .started = utc_now(),
             .supervisor = ProcessIdentity::mine(),
             .pages = ranks_.pages().descriptor(),
             .most_restarts = options_.limits.restarts,
             .most_per_hour = options_.limits.per_hour,
             .excluded = excluded()};
  if (network_) {
    for (const int node : chosen_) attempt.nodes.push_back(member(node).join.name);
  }
  bool mine = true;
  attempt.number = newest_attempt_ + 1;
  const bool recorded = record(write_trouble_, [&] {
    if (network_)
      mine = take_number(attempt);
    else
      attempts_.begin(attempt);
  });
  if (!mine) {
    chosen_ = ran_before;
    return false;
  }
  coordinator_.reset();
  if (!recorded) {
    attempt.number = newest_attempt_ + 1;
    without_file_.insert(attempt.number);  // when it gets one, it must not overwrite that of another attempt
  }
  newest_attempt_ = attempt.number;
  has_file = true;  // or will have
  if (std::exchange(is_orphan_, false)) write_down(ended_.back());
  exclude_suspects(ran_before, last_has_file);
  return true;
}

void Supervisor::give_orders(const telemetry::Attempt& attempt) {
  const bool begins_again = !has_saved_ && has_loaded_ && options_.begins_as_told;
  std::vector<std::string> command = has_saved_     ? resuming(options_.command)
                                     : begins_again ? beginning_again(options_.command)
                                                    : options_.command;
  has_begun_ = true;
  if (smaller_) {
    command.push_back(concat("--parallel.replicate=", smaller_->replicate));
    command.push_back(concat("--parallel.shard=", smaller_->shard));
    ranks_.say(fmt::format(
        "attempt {} has {} ranks on {} hosts: replicate {}, shard {}. Its results agree with those of {} ranks "
        "within roundoff, not to the bit",
        attempt.number, attempt.ranks, chosen_.size(), smaller_->replicate, smaller_->shard, options_.ranks * wanted()));
  }
  // A killed process is no sign of a faulty processor. A faulty GPU may have been the cause.
  const bool gate = options_.gpus > 0 || ended_.empty() || ended_.back().code <= 128;
  const NodeJoin& first = member(chosen_.front()).join;
  for (int node = 0; node < nodes(); ++node) {
    const auto found = std::find(chosen_.begin(), chosen_.end(), node);
    const int before = static_cast<int>(found - chosen_.begin()) * options_.ranks;
    const int count = found == chosen_.end() ? 0 : std::min(options_.ranks, attempt.ranks - before);
    const Order order{
        .attempt = attempt.number,
        .recorded = recorded_attempt_,
        .job = job_,
        .loaded = has_loaded_,
        .saved = has_saved_,
        .trained = has_trained_ && !begins_again,  // which moves run.json
        .gate = gate,
        .ranks = {.first = count > 0 ? before : 0, .count = count, .all = attempt.ranks, .host = first.host, .port = first.port},
        .replicas = replica_places(node),
        .links = count > 0 ? link_places(node) : std::vector<std::string>(),
        .chosen = chosen_,
        .command = command,
        .config = options_.config};
    member(node).runs = count > 0;
    member(node).has_begun = false;
    if (node == me())
      ranks_.start(order);
    else if (member(node).here)
      network_->send(node, topic::kOrder, text_of(order));
  }
}

std::string Supervisor::replica_place(int node) const {
  const NodeJoin& join = members_[static_cast<std::size_t>(node)].join;
  return concat(join.host, ":", join.replicas_port);
}

// A host's snapshots go to the host half the list further on, so that both are rarely in one rack.
checkpoint::ReplicaPlaces Supervisor::replica_places(int node) const {
  checkpoint::ReplicaPlaces places{.ranks_per_host = options_.ranks};
  std::vector<int> ring = chosen_, others;
  for (int other = 0; other < nodes(); ++other) {
    if (!members_[static_cast<std::size_t>(other)].here || other == node) continue;
    others.push_back(other);
    if (ring.size() == 1) ring.push_back(other);  // a spare
  }
  const auto mine = std::find(chosen_.begin(), chosen_.end(), node);
  if (options_.replicas == 0 || mine == chosen_.end() || ring.size() == 1) return places;
  const int keeper = ring[(static_cast<std::size_t>(mine - chosen_.begin()) + ring.size() / 2) % ring.size()];
  std::stable_partition(others.begin(), others.end(), [&](int other) { return other == keeper; });
  places.to = replica_place(keeper);
  for (const int other : others) places.from.push_back(replica_place(other));
  return places;
}

void Supervisor::run_attempt(telemetry::Attempt& attempt) {
  verdict_ = {};
  stopping_ = regrouping_ = left_ = false;
  late_at_.reset();
  save_to_grow_ = save_to_exclude_ = {};
  without_straggler_.clear();
  found_unfit_.clear();
  links_.clear();
  fault_.reset();
  begin_ns_ = telemetry::monotonic_ns();
  if (ended_ns_ > 0) attempt.seconds["waited"] = std::max(0.0, -since_begin(ended_ns_));
  give_orders(attempt);
  attempt_ = attempt.number;
  StallWatch watch(options_.stall_s);
  while (std::any_of(members_.begin(), members_.end(), [](const Member& member) { return member.runs; })) {
    for (const NodeEvent& event : turn(kLongestTurnS)) handle(event);
    while (const std::optional<NodeEnd> end = ranks_.news()) handle_end(me(), *end);
    if (const std::optional<LinkReport> report = ranks_.links()) handle_links(me(), *report);
    lose_late();
    if (!attempt.seconds.contains("first_step") && ranks_.pages().page(0).first_step_ns > 0) {
      record_start(attempt, ranks_.pages().page(0));
      write_down(attempt);
    }
    // The gate of a spare may find a fault while the others train.
    if (std::vector<telemetry::ExcludedHost> now = excluded(); now != attempt.excluded) {
      attempt.excluded = std::move(now);
      write_down(attempt);
    }
    if (seconds_since(tried_at_) >= kWriteAgainS) write_waiting();
    say_recovered();
    tell_progress(attempt.ranks);
    if (const std::optional<Stall> stall = watch.look(ranks_.pages().first(attempt.ranks), Clock::now())) end_stall(*stall);
    if (can_grow()) {
      ranks_.say("enough hosts are here again: saves, and continues with more ranks");
      regrouping_ = true;
      stop_others(kSaveS);
    }
    exclude_straggler(attempt.ranks);
    // Ranks hear of a request from the supervisors of their own hosts, and this host may have none.
    if (ranks_.asked() && !runs_ranks(me())) {
      left_ = true;
      stop_others(kSaveS);
    }
  }
  attempt.code = verdict_.code();
  attempt.what = verdict_.what();
  attempt.ended = utc_now();
  record_times(attempt, ranks_.pages().page(0));
  ended_ns_ = telemetry::monotonic_ns();
  if (fault_) failed_at_ = fault_;
  member(me()).join.port = own_port();
}

void Supervisor::handle(const NodeEvent& event) {
  const int node = event.node;
  if (node == kUplink) return;  // a late event of the coordinator that this node followed before
  try {
    if (event.kind == NodeEvent::Kind::joined) {
      network_->send(node, topic::kWelcome, news());
    } else if (event.kind == NodeEvent::Kind::gone) {
      lose(node, event.text);
    } else if (event.what == topic::kJoin) {
      const NodeJoin join = join_of(event.text);
      if (join.command != member(me()).join.command || join.ranks != options_.ranks) {
        const std::string what = join.ranks != options_.ranks ? concat(join.ranks, " ranks instead of ", options_.ranks)
                                                              : concat("another command than node", me(), ": ", join.command);
        const std::string why = concat("node", node, " was started with ", what);
        ranks_.say(why);
        // A host may have lost a GPU, so another number of ranks is no mistake of the command.
        const ExitCode code = join.ranks != options_.ranks ? ExitCode::peer : ExitCode::config;
        return network_->send(node, topic::kFinish, text_of(RunOver{.code = static_cast<int>(code), .why = why}));
      }
      member(node) = {.here = true, .join = join};
      // A supervisor that has been started again checks its host again.
      roster_.set_unfit(node, !join.unfit.empty());
      why_unfit_[node] = join.unfit;
      roster_.set_slow(node, false);
      roster_.take_back(node);
      ranks_.say(concat(name_of(node), " has joined from ", join.host, join.unfit.empty() ? "" : ", but is unfit: ", join.unfit));
      if (!join.launch.empty() && join.launch != member(me()).join.launch)
        ranks_.say(concat("warning: ", name_of(node), " was started with other options than ", name_of(me()), ": ", join.launch,
                          " instead of ", member(me()).join.launch, ". Those of the host that coordinates count, and another ",
                          "host may coordinate after a fault; start the same command everywhere"));
      const std::int64_t ahead_s = join.utc_s - std::time(nullptr);
      if (std::abs(ahead_s) > kClocksS)
        ranks_.say(concat("warning: the clock of ", name_of(node), " is ", std::abs(ahead_s), " s ",
                          ahead_s > 0 ? "ahead of" : "behind", " that of ", name_of(me()),
                          ". Set both clocks, for example by NTP: `octet status`, the report and object "
                          "storage compare times of several hosts"));
    } else if (event.what == topic::kPages) {
      if (member(node).runs && read_pages(event.text, attempt_, ranks_.pages())) member(node).has_begun = true;
    } else if (event.what == topic::kLinks) {
      handle_links(node, link_report_of(event.text));
    } else if (event.what == topic::kEnded) {
      handle_end(node, end_of(event.text));
    }
  } catch (const Error& error) {
    network_->close(node);
    lose(node, error.what());
  }
}

int Supervisor::node_of(int rank) const { return chosen_[static_cast<std::size_t>(rank / options_.ranks)]; }

// More hosts do not always allow more ranks: seven hosts cannot share a batch of eight.
bool Supervisor::can_grow() {
  if (stopping_ || !smaller_) return false;
  int ready = 0;
  for (int node = 0; node < nodes(); ++node) ready += is_ready(node) && !roster_.is_left_out(node) ? 1 : 0;
  const std::optional<DataMesh> mesh = ready < wanted() ? shrunk(options_.mesh, ready * options_.ranks) : options_.mesh;
  return save_to_grow_.has_come(mesh && mesh->ranks() > smaller_->ranks(), ranks_.pages().page(0));
}

int Supervisor::finish(int code) {
  for (int node = 0; network_ && node < nodes(); ++node) network_->send(node, topic::kFinish, text_of(RunOver{.code = code}));
  return code;
}

std::string Supervisor::news() const {
  return text_of(Order{.attempt = has_begun_ ? newest_attempt_ : 0,
                       .recorded = recorded_attempt_,
                       .job = job_,
                       .loaded = has_loaded_,
                       .saved = has_saved_,
                       .trained = has_trained_,
                       .ranks = {.count = 0, .all = 0},
                       .chosen = chosen_,
                       .config = options_.config});
}

void Supervisor::tell_progress(int ranks) {
  const Pages pages = ranks_.pages().first(ranks);
  const bool loads = std::any_of(pages.begin(), pages.end(), [](const telemetry::RankPage* page) {
    return page->entered_ns[static_cast<std::size_t>(telemetry::Phase::loading)] > 0;
  });
  const bool loaded = has_loaded_ || loads, saved = has_saved_ || pages.front()->saved_step > 0;
  const bool trained = has_trained_ || pages.front()->first_step_ns > 0;
  if (loaded == has_loaded_ && saved == has_saved_ && trained == has_trained_) return;
  has_loaded_ = loaded;
  has_saved_ = saved;
  has_trained_ = trained;
  for (int node = 0; network_ && node < nodes(); ++node) network_->send(node, topic::kWelcome, news());
}

void Supervisor::say_recovered() {
  const telemetry::RankPage& first = ranks_.pages().page(0);
  if (!failed_at_ || first.first_step_ns == 0) return;
  const double since_step = static_cast<double>(telemetry::monotonic_ns() - first.first_step_ns) * 1e-9;
  const double took_s = last_step_ns_ > 0 ? static_cast<double>(first.first_step_ns - last_step_ns_) * 1e-9
                                          : seconds_since(*failed_at_) - since_step;
  const std::string_view from = telemetry::name_of(first.origin.load());
  const std::int64_t again = ended_.empty() ? 0 : ended_.back().last_step - first.start_step;
  ranks_.say(fmt::format(
      "attempt {} trains from step {}{}{}: its first step came {:.1f} s after {}{}", attempt_, first.start_step.load(),
      from.empty() ? "" : ", from ", from, took_s,
      last_step_ns_ > 0 ? "the last step before the restart" : "the fault was noticed",
      again > 0 ? fmt::format(", and {} {} done again", telemetry::format_count(again, "step"), again == 1 ? "is" : "are") : ""));
  failed_at_.reset();
  last_step_ns_ = 0;
}

bool Supervisor::pause(double seconds) {
  const Clock::time_point start = Clock::now();
  do {
    for (const NodeEvent& event : turn(std::max(0.0, seconds - seconds_since(start)))) handle(event);
    if (too_many_leave()) return true;  // gather() deals with it
    if (ranks_.asked()) {
      ranks_.say("asked to end while no rank ran; the same command continues from the newest checkpoint");
      return false;
    }
  } while (seconds_since(start) < seconds);
  return true;
}

}  // namespace octet::app
