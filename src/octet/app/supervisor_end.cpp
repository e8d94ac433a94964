// How an attempt ends on all hosts, and what follows from it.
#include <fmt/format.h>

#include <csignal>
#include <map>
#include <utility>

#include "octet/app/supervisor.h"
#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/comm/socket.h"
#include "octet/telemetry/jsonl.h"

namespace octet::app {
namespace {

constexpr double kLeavingS = 1;  // within which a scheduler asks all hosts, if it asks more than one

constexpr int kUnfit = static_cast<int>(ExitCode::unfit), kMissesPeer = static_cast<int>(ExitCode::peer);

}  // namespace

void Supervisor::handle_end(int node, const NodeEnd& end) {
  if (end.code == kUnfit && end.cause == Cause::unknown) exclude_unfit(node, end.what);
  member(node).asked = member(node).asked || end.asked;
  if (end.attempt != attempt_ || !member(node).runs) return;
  left_ = left_ || end.asked;
  if (end.all) {
    member(node).runs = false;
    member(node).join.port = end.port;
  }
  if (end.code == 0) return;
  if (!fault_) fault_ = node == me() && ranks_.failed_at() ? *ranks_.failed_at() : Clock::now();
  verdict_.rank_failed(node, end.code, end.what, end.cause);
  for (const int rank : end.unreachable) {
    if (rank / options_.ranks >= static_cast<int>(chosen_.size())) continue;
    const int other = node_of(rank);
    if (other != node) verdict_.link_broken(node, other, concat(name_of(node), " and ", name_of(other), " cannot reach each other"));
  }
  stop_others(options_.grace_s);
}

void Supervisor::lose(int node, std::string_view how) {
  Member& lost = member(node);
  if (!lost.here) return;
  lost.here = false;
  const bool ran = std::exchange(lost.runs, false);
  if (lost.asked && !ran) return;  // it has said goodbye
  ranks_.say(concat(name_of(node), " ", how));
  if (!ran) return;
  if (!fault_) fault_ = Clock::now();
  verdict_.node_lost(node, concat(name_of(node), " ", how));
  stop_others(options_.grace_s);
}

std::string Supervisor::what_is_late() { return concat("has not ended its ranks within ", kLateS, " s of SIGKILL"); }

void Supervisor::give_up_own_ranks() {
  const std::string what = concat(name_of(me()), " ", what_is_late(), "; its processes need a look: ps -o pid,stat,wchan,args");
  ranks_.say(what);  // main() says it only after NodeRanks has waited for the ranks once more
  fail(ExitCode::peer, what);
}

// The kernel cannot kill a process that waits for a device or a file server. Such a host must not hold up the others.
void Supervisor::lose_late() {
  if (!late_at_ || Clock::now() < *late_at_) return;
  late_at_.reset();
  const std::string how = what_is_late();
  for (int node = 0; node < nodes(); ++node) {
    if (!member(node).runs) continue;
    if (is_in_gate(node)) {
      late_at_ = Clock::now() + comm::seconds(kLateS);
      continue;
    }
    if (node == me() && network_) {
      give_up_own_ranks();
    }
    if (node == me()) {
      ranks_.say(concat("this host ", how, "; waits"));
    } else {
      network_->close(node);
      lose(node, how);
    }
  }
}

// A gate is not killed with the attempt, because what it finds out is worth the wait. It ends by itself or is killed at its limit.
bool Supervisor::is_in_gate(int node) const {
  if (!options_.gate || since_begin(telemetry::monotonic_ns()) > kFullGateLimitS + kLateS) return false;
  return node == me() ? ranks_.in_gate() : !members_[static_cast<std::size_t>(node)].has_begun;
}

void Supervisor::end_stall(const Stall& stall) {
  if (stopping_) return;
  std::string what = stall.what;
  int blamed = -1;
  if (network_ && !stall.behind.empty()) {
    blamed = node_of(stall.behind.front());
    what += concat("; rank ", stall.behind.front(), " is on ", name_of(blamed));
  }
  ranks_.say(concat(what, "; the stacks of all threads are in ", (options_.run_folder / "logs").string()));
  if (!fault_) fault_ = Clock::now();
  verdict_.stalled(blamed, what);
  for (int node = 0; node < nodes(); ++node) {
    if (node != me() && member(node).runs) network_->send(node, topic::kStacks, "{}");
  }
  ranks_.write_stacks();
  stop_others(options_.grace_s);
}

// Also stops this node's own ranks, unless they are ending by themselves.
void Supervisor::stop_others(double grace_s) {
  if (std::exchange(stopping_, true)) return;
  late_at_ = Clock::now() + comm::seconds(grace_s + kLateS);
  for (int node = 0; node < nodes(); ++node) {
    if (node != me() && member(node).runs) network_->send(node, topic::kStop, fmt::format(R"({{"grace_s": {}}})", grace_s));
  }
  if (ranks_.running() && !ranks_.failed_at()) ranks_.end(grace_s);
}

bool Supervisor::others_go_on() {
  if (!network_) return false;
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < kLeavingS) {
    for (const NodeEvent& event : turn(kLeavingS / 4)) handle(event);
  }
  int stay = 0;
  for (int node = 0; node < nodes(); ++node) {
    const bool leaves = member(node).asked || (node == me() && ranks_.asked());
    stay += is_ready(node) && !leaves ? 1 : 0;
  }
  return suffice(stay);
}

void Supervisor::look_back() {
  if (!network_) return;  // the job has just begun
  std::map<std::int64_t, telemetry::Attempt> attempts;
  record(read_trouble_, [&] {
    for (telemetry::Attempt& attempt : attempts_.read()) {
      if (attempt.job == job_) attempts[attempt.number] = std::move(attempt);
    }
    // The coordinator before may have been lost before it told of a checkpoint.
    const std::filesystem::path about = options_.run_folder / "run.json";
    if (!path_exists(about)) return;
    const telemetry::RunInfo info = telemetry::read_run_info(about);
    has_saved_ = has_saved_ || (info.job == job_ && info.checkpoint_step > 0);
  });
  for (const telemetry::Attempt& attempt : ended_) attempts[attempt.number] = attempt;
  std::vector<telemetry::Attempt> in_order;
  for (auto& [number, attempt] : attempts) {
    has_loaded_ = has_loaded_ || attempt.seconds.contains("loading");
    has_trained_ = has_trained_ || attempt.seconds.contains("first_step");
    in_order.push_back(std::move(attempt));
  }
  budget_ = budget_after(in_order, options_.limits, static_cast<double>(telemetry::monotonic_ns()) * 1e-9);
}

void Supervisor::judge(telemetry::Attempt& attempt, RestartBudget::Decision& decision) {
  // If several hosts cannot read or write a file, no host is to blame.
  if (attempt.code == kUnfit && verdict_.node() < 0) attempt.code = static_cast<int>(ExitCode::data);
  // Wrong bits may have been a single event, so that is a fault like any other.
  const bool unfit = attempt.code == kUnfit && verdict_.cause() != Cause::wrong_bits;
  if (unfit) exclude_unfit(verdict_.node(), verdict_.what());
  if (verdict_.any()) roster_.blame(verdict_.node());
  if (verdict_.node() >= 0) faults_[verdict_.node()] = {.code = verdict_.code(), .what = verdict_.what()};
  if (network_ && verdict_.node() >= 0 && roster_.is_suspect(verdict_.node()) && !roster_.is_unfit(verdict_.node()))
    ranks_.say(concat(name_of(verdict_.node()), " is under suspicion; other hosts run the ranks if there are enough of them"));
  const bool asked = left_ || ranks_.asked();
  if (attempt.code != 0 && asked && others_go_on()) {
    decision = {.restarts = true};
    attempt.next = telemetry::kWithoutTheAsked;
  } else if (unfit && !asked) {
    const std::string too_few = too_few_fit();
    decision.restarts = too_few.empty();
    decision.code = attempt.code;
    attempt.next = too_few.empty() ? concat("restarts without ", names_of(found_unfit_)) : concat("stops: ", too_few);
  } else if (regrouping_ && (attempt.code == static_cast<int>(ExitCode::preempted) || attempt.code == kMissesPeer) && !asked) {
    decision = {.restarts = true};
    attempt.next = without_straggler_.empty() ? "restarts with more hosts" : without_straggler_;
  } else {
    decision = budget_.judge({.code = attempt.code,
                              .cause = verdict_.cause(),
                              .asked = asked,
                              .trained = has_trained_,
                              .saved_step = ranks_.pages().page(0).saved_step,
                              .from_step = ranks_.pages().page(0).start_step,
                              .at_s = static_cast<double>(telemetry::monotonic_ns()) * 1e-9});
    if (decision.restarts) {
      attempt.next = decision.wait_s > 0 ? fmt::format("restarts in {:.0f} s", decision.wait_s) : "restarts";
    } else if (asked && (attempt.code == kMissesPeer || attempt.code == 128 + SIGKILL)) {
      // A rank was killed at the same moment, or ranks were stopped because of the request. The same command goes on.
      attempt.next = telemetry::kAskedToEnd;
    } else if (attempt.code != 0) {
      attempt.code = decision.code;
      attempt.next = concat("stops", decision.why.empty() ? "" : ": ", decision.why);
    }
  }
}

}  // namespace octet::app
