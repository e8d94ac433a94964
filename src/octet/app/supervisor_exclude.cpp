// Excludes hosts from running ranks.
#include <fmt/format.h>

#include <algorithm>

#include "octet/app/supervisor.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

constexpr std::string_view kSuspected = "to blame for two of the last three attempts";

}  // namespace

std::string Supervisor::names_of(const std::vector<int>& nodes) const {
  std::vector<std::string> names;
  for (const int node : nodes) names.push_back(name_of(node));
  return fmt::format("{}", fmt::join(names, ", "));
}

void Supervisor::exclude_unfit(int node, std::string_view what) {
  if (roster_.is_unfit(node)) return;
  roster_.set_unfit(node, true);
  why_unfit_[node] = what;
  found_unfit_.push_back(node);
  ranks_.say(concat(name_of(node), " takes no part in this run any more: ", what));
  exclude_command_.start(host_of(node), static_cast<int>(ExitCode::unfit), std::string(what));
}

// Every host measures its links to the next two hosts, so that each has two links in both directions.
std::vector<std::string> Supervisor::link_places(int node) const {
  std::vector<std::string> places;
  const std::size_t hosts = chosen_.size();
  if (!options_.gate || !replicas_ || hosts < 3) return places;
  const auto mine = static_cast<std::size_t>(std::find(chosen_.begin(), chosen_.end(), node) - chosen_.begin());
  for (const std::size_t further : {1, 2}) places.push_back(replica_place(chosen_[(mine + further) % hosts]));
  return places;
}

void Supervisor::handle_links(int node, const LinkReport& report) {
  if (report.attempt != attempt_ || !runs_ranks(node)) return;
  std::vector<NodeLink>& measured = links_[node];
  measured.clear();
  for (const LinkRate& link : report.links) {
    const auto to = std::find_if(chosen_.begin(), chosen_.end(), [&](int other) { return replica_place(other) == link.to; });
    // A link that is broken shows when the ranks meet.
    if (to != chosen_.end() && link.trouble.empty())
      measured.push_back({.from = node, .to = *to, .bytes_per_s = link.bytes_per_s, .latency_s = link.latency_s});
  }
  if (links_.size() < chosen_.size() || stopping_) return;
  std::vector<NodeLink> all;
  for (const auto& [from, links] : links_) all.insert(all.end(), links.begin(), links.end());
  for (const SlowHost& slow : slow_hosts(all)) {
    int others = 0;
    for (int other = 0; other < nodes(); ++other) others += other != slow.node && is_ready(other) ? 1 : 0;
    if (!suffice(others)) {
      ranks_.say(concat("warning: ", name_of(slow.node), " has a slow link: it ", slow.what,
                        "; the run keeps it, because the other hosts are too few"));
      continue;
    }
    const std::string what = concat("gate: has a slow link: it ", slow.what,
                                    ". Look at its cable, at its port of the switch, and at ", "what else uses its network");
    exclude_unfit(slow.node, what);
    verdict_.rank_failed(slow.node, static_cast<int>(ExitCode::unfit), what);
    if (!fault_) fault_ = Clock::now();
    stop_others(options_.grace_s);
  }
}

std::vector<telemetry::ExcludedHost> Supervisor::excluded() const {
  std::vector<telemetry::ExcludedHost> result;
  const auto why_of = [](const std::map<int, std::string>& whys, int node) {
    const auto found = whys.find(node);
    return found == whys.end() ? std::string() : found->second;
  };
  for (int node = 0; node < nodes(); ++node) {
    if (!members_[static_cast<std::size_t>(node)].here) continue;
    std::string why;
    if (roster_.is_unfit(node)) {
      why = why_of(why_unfit_, node);
    } else if (!runs_ranks(node) && roster_.is_suspect(node)) {
      const auto fault = faults_.find(node);
      why = concat(kSuspected, fault == faults_.end() ? "" : ": " + fault->second.what);
    } else if (!runs_ranks(node) && roster_.is_slow(node)) {
      why = why_of(why_slow_, node);
    } else {
      continue;
    }
    result.push_back({.node = node, .host = host_of(node), .why = why});
  }
  return result;
}

bool Supervisor::suffice(int hosts) const {
  return hosts >= options_.min_hosts && (hosts >= wanted() || shrunk(options_.mesh, hosts * options_.ranks));
}

int Supervisor::fewest() const {
  int hosts = options_.min_hosts;
  while (!suffice(hosts)) ++hosts;
  return hosts;
}

std::string Supervisor::too_few_fit() const {
  const int fit = nodes() - roster_.unfit();
  if (roster_.unfit() == 0 || suffice(fit)) return "";
  return nodes() == 1 ? "this host is unfit"
                      : fmt::format("{} of {} hosts are fit, and {} are needed", fit, nodes(), fewest());
}

void Supervisor::exclude_suspects(const std::vector<int>& ran_before, bool has_file) {
  for (const int node : ran_before) {
    const bool runs = runs_ranks(node);
    if (runs || !roster_.is_suspect(node) || roster_.is_unfit(node)) continue;
    ranks_.say(concat(name_of(node), " no longer runs ranks, because it is ", kSuspected,
                      smaller_ && roster_.is_left_out(node) ? "; to take it back, start its supervisor again" : ""));
    exclude_command_.start(host_of(node), faults_[node].code, faults_[node].what);
    ended_.back().next += concat(", without ", name_of(node), ", which is ", kSuspected);
    if (has_file) write_down(ended_.back());
  }
}

// Waits for the next checkpoint, as can_grow() does.
void Supervisor::exclude_straggler(int ranks) {
  if (options_.exclude_stragglers == 0 || stopping_) return;
  bool has_spare = false;
  for (int node = 0; node < nodes(); ++node) {
    const bool runs = runs_ranks(node);
    has_spare = has_spare || (is_ready(node) && !runs && !roster_.is_slow(node) && !roster_.is_suspect(node));
  }
  int slow = -1;
  for (int rank = 0; rank < ranks && slow < 0; ++rank) {
    const telemetry::RankPage& page = ranks_.pages().page(rank);
    if (page.slow_since > 0 && page.slow_intervals >= options_.exclude_stragglers) slow = rank;
  }
  if (!save_to_exclude_.has_come(has_spare && slow >= 0, ranks_.pages().page(0))) return;
  const telemetry::RankPage& page = ranks_.pages().page(slow);
  const int node = node_of(slow);
  const std::string what = fmt::format("rank {} computes {:.0f}% slower than the median since step {}", slow,
                                       100 * page.slower.load(), telemetry::format_count(page.slow_since.load()));
  without_straggler_ = concat("restarts without ", name_of(node), ", because ", what);
  ranks_.say(concat(name_of(node), " is slow: ", what, "; saves, and a spare takes its place"));
  roster_.set_slow(node, true);
  why_slow_[node] = what;
  exclude_command_.start(host_of(node), static_cast<int>(ExitCode::unfit), what);
  regrouping_ = true;
  stop_others(kSaveS);
}

int Supervisor::leave_between_attempts(bool has_file) {
  if (!others_go_on()) return end_between_attempts(has_file, ExitCode::preempted, telemetry::kAskedToEnd);
  ranks_.say("leaves the run; the other hosts continue");
  return static_cast<int>(ExitCode::preempted);
}

int Supervisor::end_between_attempts(bool has_file, ExitCode code, const std::string& next) {
  free_room();
  write_waiting();
  const bool may_write = is_own_attempt() || lock_watch_.still_s() >= LockWatch::kStillS;
  if (!ended_.empty() && has_file && may_write) {
    ended_.back().next = next;
    // A request to end says nothing about how the attempt went; kAskedToEnd says enough.
    if (code != ExitCode::preempted) ended_.back().code = static_cast<int>(code);
    write_down(ended_.back());
  }
  return finish(static_cast<int>(code));
}

}  // namespace octet::app
