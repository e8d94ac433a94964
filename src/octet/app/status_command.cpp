// `octet status`: the progress of a run, its process, and what went wrong.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "octet/app/commands.h"
#include "octet/app/run_status.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/jsonl.h"
#include "octet/telemetry/skipped_steps.h"

namespace octet::app {
namespace {

using telemetry::format_count;
using telemetry::format_duration;

constexpr int kVanished = 137;  // as a shell says of a process that was killed

// Returns the code for --code: 0 while the run continues and when it has finished.
int code_of(const RunStatus& status) {
  switch (status.state) {
    case RunState::running:
    case RunState::waiting:
    case RunState::elsewhere:
    case RunState::done:
      return 0;
    case RunState::vanished:
      return kVanished;
    case RunState::ended:
      break;
  }
  return status.code.value_or(static_cast<int>(ExitCode::internal));
}

std::string checkpoint_text(std::int64_t step, std::optional<double> age_s) {
  if (step == 0) return "none yet";
  return fmt::format("of step {}{}", format_count(step), age_s ? fmt::format(", {} old", format_duration(*age_s)) : "");
}

// "2 ranks, from memory, step 4,180; 14s lost": how the newest attempt began.
std::string start_text(const std::vector<telemetry::Attempt>& attempts) {
  const telemetry::Attempt& last = attempts.back();
  std::string text = format_count(last.ranks, "rank");
  if (!last.nodes.empty()) text += " on " + format_count(static_cast<std::int64_t>(last.nodes.size()), "host");
  if (!last.from.empty()) text += fmt::format(", from {}, step {}", last.from, format_count(last.from_step));
  const std::optional<double> lost_s = lost_before(attempts, attempts.size() - 1);
  return lost_s ? fmt::format("{}; {} lost", text, format_duration(*lost_s)) : text;
}

// "1 of 3 used without progress since step 40, 2 of 20 in the last hour".
std::string restarts_text(const RestartBudget::Use& use, const telemetry::Attempt& last) {
  std::string text = fmt::format("{} of {} used without progress", use.restarts, last.most_restarts);
  if (use.restarts > 0 && use.since_step) text += fmt::format(" since step {}", format_count(*use.since_step));
  return last.most_per_hour > 0 ? fmt::format("{}, {} of {} in the last hour", text, use.in_hour, last.most_per_hour) : text;
}

constexpr double kLongS = 5;  // a rank without progress for this long is mentioned

// "2 training step 13, 1 saving"; then the rank that has stood still for longest.
std::string ranks_text(const std::vector<RankStatus>& ranks) {
  std::map<std::string, int> doing;
  for (const RankStatus& rank : ranks) {
    const bool trains = rank.phase == telemetry::Phase::training;
    ++doing[trains ? fmt::format("training step {}", format_count(rank.step + 1)) : std::string(name_of(rank.phase))];
  }
  std::string text;
  for (const auto& [what, count] : doing) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  const auto longest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const RankStatus& a, const RankStatus& b) { return a.unchanged_s < b.unchanged_s; });
  if (longest->unchanged_s < kLongS) return text;
  return fmt::format("{}; rank {} is {} at step {} for {}, longest of all", text, longest->rank, name_of(longest->phase),
                     format_count(longest->step), format_duration(longest->unchanged_s));
}

// Returns the seconds until a running process ends, or NaN. An earlier process left 0 at the step of its --until.
double eta_s(const RunStatus& s) {
  return s.state == RunState::running && s.step < s.steps && s.eta_s > 0 ? s.eta_s : telemetry::kUnknown;
}

// "13 of 20". A run that was started again with fewer steps may be beyond the last one.
std::string step_text(const RunStatus& s) {
  if (s.steps <= 0) return fmt::format("{} of ?", format_count(s.step));
  if (s.step > s.steps) return fmt::format("{} (training.steps is now {})", format_count(s.step), format_count(s.steps));
  const bool pauses = s.state == RunState::running && s.until > 0 && s.until < s.steps;
  return fmt::format("{} of {}{}", format_count(s.step), format_count(s.steps),
                     pauses ? concat(" (--until ", format_count(s.until), ")") : "");
}

std::string to_text(const std::filesystem::path& folder, const RunStatus& s) {
  std::string text = fmt::format("{}: {}", printable(folder.string()), name_of(s.state));
  if (s.state == RunState::ended && s.code) {
    text += fmt::format(" with code {}", *s.code);
    // Before the last step, --until ends a run with code 0.
    const bool asked = *s.code == static_cast<int>(ExitCode::done) || *s.code == static_cast<int>(ExitCode::preempted);
    if (asked && s.step < s.steps) text += ", stopped before its last step";
  }
  text += '\n';
  const auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("  {:<12}{}\n", name, value); };
  line("step", concat(step_text(s), s.loss ? fmt::format(", loss {:.3f}", *s.loss) : ""));
  if (const double left = eta_s(s); std::isfinite(left) && std::isfinite(s.tokens_per_s))
    line("speed", fmt::format("{} tok/s, eta {}", format_count(s.tokens_per_s), format_duration(left)));
  if (s.skipped_steps > 0) line("skipped", telemetry::text_of_skipped(s.skipped_steps, s.step));
  line("checkpoint", checkpoint_text(s.checkpoint_step, s.checkpoint_age_s));
  if (!s.remote.empty()) line("remote", fmt::format("{}, in {}", checkpoint_text(s.remote_step, s.remote_age_s), printable(s.remote)));
  if (s.snapshot)
    line("in memory", fmt::format("step {}, {} old", format_count(s.snapshot->step), format_duration(s.snapshot->age_s)));
  const bool held = s.state == RunState::running || s.state == RunState::elsewhere;
  if (held && !s.holder.empty()) line("held by", printable(s.holder));
  if (!s.ranks.empty()) line("ranks", ranks_text(s.ranks));
  for (const telemetry::StragglerRecord& record : s.stragglers) line("straggler", printable(sentence_of(record)));
  if (!s.attempts.empty()) {
    const telemetry::TimeOfAttempts time = telemetry::time_of(s.attempts);
    const std::string share = time.all > 0 ? fmt::format(", {} of {} were steps that the run still has",
                                                         telemetry::format_share(time.productive()), format_duration(time.all))
                                           : "";
    line("attempts", fmt::format("{}{}", format_count(static_cast<std::int64_t>(s.attempts.size())), share));
    if (s.restarts && s.state != RunState::done) line("restarts", restarts_text(*s.restarts, s.attempts.back()));
    for (const telemetry::ExcludedHost& host : s.attempts.back().excluded)
      line("excluded", printable(fmt::format("node{} ({}): {}", host.node, host.host, host.why)));
    if (s.attempts.size() > 1) line(fmt::format("attempt {}", s.attempts.back().number), start_text(s.attempts));
  }
  const auto failed = std::find_if(s.attempts.rbegin(), s.attempts.rend(), [](const telemetry::Attempt& a) {
    return a.code != 0 && a.code != static_cast<int>(ExitCode::preempted);
  });
  if (failed != s.attempts.rend()) {
    line("last fault", fmt::format("{}: {} in attempt {} at step {}; {}", failed->ended, printable(failed->what), failed->number,
                                   format_count(failed->last_step), printable(failed->next)));
  }
  return text;
}

std::string to_json(const RunStatus& s) {
  const telemetry::TimeOfAttempts time = telemetry::time_of(s.attempts);
  Json json = {{"state", name_of(s.state)},
               {"code", s.code ? Json(*s.code) : Json(nullptr)},
               {"step", s.step},
               {"steps", s.steps},
               {"until", s.until},
               {"skipped_steps", s.skipped_steps},
               {"loss", s.loss ? Json(*s.loss) : Json(nullptr)},
               {"tokens_per_s", std::isfinite(eta_s(s)) ? Json(s.tokens_per_s) : Json(nullptr)},
               {"eta_s", std::isfinite(eta_s(s)) ? Json(eta_s(s)) : Json(nullptr)},
               {"checkpoint_step", s.checkpoint_step},
               {"checkpoint_age_s", s.checkpoint_age_s ? Json(*s.checkpoint_age_s) : Json(nullptr)},
               {"remote", s.remote},
               {"remote_step", s.remote_step},
               {"remote_age_s", s.remote_age_s ? Json(*s.remote_age_s) : Json(nullptr)},
               {"snapshot_step", s.snapshot ? Json(s.snapshot->step) : Json(nullptr)},
               {"snapshot_age_s", s.snapshot ? Json(s.snapshot->age_s) : Json(nullptr)},
               {"stragglers", Json::array()},
               {"holder", s.holder},
               {"productive", time.all > 0 ? Json(time.productive()) : Json(nullptr)},
               {"restarts", nullptr},
               {"excluded", Json::array()},
               {"ranks", Json::array()},
               {"attempts", Json::array()}};
  if (s.restarts) {
    json["restarts"] = {{"used", s.restarts->restarts},
                        {"most", s.attempts.back().most_restarts},
                        {"since_step", s.restarts->since_step ? Json(*s.restarts->since_step) : Json(nullptr)},
                        {"used_in_hour", s.restarts->in_hour},
                        {"most_per_hour", s.attempts.back().most_per_hour}};
  }
  if (!s.attempts.empty()) {
    for (const telemetry::ExcludedHost& host : s.attempts.back().excluded)
      json["excluded"].push_back({{"node", host.node}, {"host", host.host}, {"why", host.why}});
  }
  for (const telemetry::StragglerRecord& record : s.stragglers)
    json["stragglers"].push_back(parse_ordered_json(telemetry::to_json_line(record), "a straggler"));
  for (const RankStatus& rank : s.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"phase", name_of(rank.phase)},
                             {"step", rank.step},
                             {"compute_s", rank.own_s > 0 ? Json(rank.own_s) : Json(nullptr)},
                             {"unchanged_s", rank.unchanged_s}});
  }
  for (const telemetry::Attempt& a : s.attempts) json["attempts"].push_back(parse_ordered_json(telemetry::json_text_of(a), "an attempt"));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int run_status(const StatusArgs& args) {
  const RunStatus status = status_of(args.run);
  if (args.code) return code_of(status);
  std::fputs((args.json ? to_json(status) : to_text(args.run, status)).c_str(), stdout);
  return 0;
}

}  // namespace octet::app
