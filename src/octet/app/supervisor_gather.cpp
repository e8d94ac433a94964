// How a coordinator waits for hosts before an attempt, and when it must not begin one.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "octet/app/supervisor.h"

namespace octet::app {
namespace {

constexpr double kSparesS = 5;  // how long the first attempt waits for spares
constexpr double kSettleS = 2;  // how long a new coordinator waits for nodes that it did not know
constexpr double kAskS = 2;     // how long a node takes at most that asks another one, and does not reach it

}  // namespace

bool Supervisor::is_outnumbered() const {
  int here = 0, away = 0;
  for (const int node : chosen_) {
    const Member& member = members_[static_cast<std::size_t>(node)];
    if (!member.asked) ++(member.here ? here : away);
  }
  return here < away;
}

bool Supervisor::too_many_leave() const {
  int leave = 0, stay = 0;
  for (int node = 0; node < nodes(); ++node) {
    if (members_[static_cast<std::size_t>(node)].asked)
      ++leave;
    else if (!roster_.is_unfit(node))
      ++stay;
  }
  return leave > 0 && !suffice(stay);
}

bool Supervisor::other_job_may_run() {
  std::optional<telemetry::Attempt> newest;
  record(read_trouble_, [&] {
    for (telemetry::Attempt& attempt : attempts_.read()) newest = std::move(attempt);
  });
  if (!newest || newest->job == job_ || !telemetry::goes_on(*newest)) return false;
  return newest->coordinator >= nodes() || !member(newest->coordinator).here;
}

Supervisor::Gathered Supervisor::gather(bool first) {
  const Clock::time_point start = Clock::now();
  const std::filesystem::path lock = options_.run_folder / "run.lock";
  double told_s = 0;
  bool told_late = false;
  if (!first) lock_watch_.restart();  // search() has watched it for a first one
  for (;;) {
    if (member(me()).join.port == 0) member(me()).join.port = own_port();
    int here = 0;
    for (int node = 0; node < nodes(); ++node) here += is_ready(node) ? 1 : 0;
    if (const std::string why = too_few_fit(); !why.empty()) {
      ranks_.say(why);
      return Gathered::unfit;
    }
    if (too_many_leave()) {
      ranks_.say("hosts were asked to leave, and the others are too few");
      return Gathered::left;
    }
    if (here == nodes() - roster_.unfit()) return Gathered::yes;
    // A first coordinator has already waited while it searched for another one. Nodes that asked it meanwhile join at once.
    const double gathers_s = seconds_since(start), waited_s = first ? seconds_since(born_) : gathers_s;
    const bool late = waited_s >= options_.join_timeout_s && gathers_s >= std::min(kSettleS, options_.join_timeout_s);
    const bool enough =
        (here >= wanted() && (!first || gathers_s >= kSparesS)) || (suffice(here) && (late || (!first && gathers_s >= kSettleS)));
    // The missing hosts may run ranks that this side of a broken network must not disturb.
    if (enough && !(first ? other_job_may_run() : is_outnumbered())) return Gathered::yes;
    watch_lock(late);
    const bool were_asked = !first && !is_orphan_ && !ended_.empty() && ended_.back().next == telemetry::kWithoutTheAsked;
    if (enough && (lock_watch_.still_s() >= LockWatch::kSilenceS || (were_asked && lock_watch_.is_free()))) return Gathered::yes;
    demand(!late || !lock_watch_.grows(), ExitCode::peer, name_of(me()),
           " cannot reach the hosts on which the run continues: the counter in ", lock.string(), " grows");
    std::vector<std::string> missing;
    for (int node = 0; node < nodes(); ++node) {
      if (!is_ready(node) && !roster_.is_unfit(node)) missing.push_back(name_of(node));
    }
    const std::string which = fmt::format("{}", fmt::join(missing, ", "));
    const bool gives_up = late && !enough && (is_own_attempt() || lock_watch_.still_s() >= LockWatch::kStillS);
    if (late && !std::exchange(told_late, true)) {
      const std::string refusal = network_ ? network_->last_refusal() : "";
      if (!enough)
        ranks_.say(fmt::format("{} of {} hosts are here after {:.0f} s, and {} are needed; missing: {}{}", here, nodes(),
                               waited_s, fewest(), which, refusal.empty() ? "" : "; " + refusal));
      if (!gives_up) ranks_.say(concat("watches ", lock.string(), ", because the run may continue without this host"));
    }
    if (gives_up) return Gathered::too_few;
    if (!late && waited_s >= told_s + kSparesS) {
      ranks_.say(fmt::format("waits for {}; {}", which,
                             enough ? concat("the run may continue there, unless the counter in ", lock.string(),
                                             " does not grow for ", LockWatch::kSilenceS, " s")
                                    : fmt::format("{:.0f} s left", options_.join_timeout_s - waited_s)));
      told_s = waited_s + options_.join_timeout_s / 10;
    }
    for (const NodeEvent& event : turn(kLongestTurnS)) handle(event);
    if (ranks_.asked()) return Gathered::asked;
    if (!first && is_replaced()) return Gathered::replaced;
    const bool has_time = late || waited_s + kAskS < options_.join_timeout_s;  // to ask a node that does not answer
    if (!first && has_time && gathers_s >= kSettleS && ask_a_missing_node()) return Gathered::found;
  }
}

}  // namespace octet::app
