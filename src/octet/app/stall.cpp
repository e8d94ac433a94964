#include "octet/app/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

using telemetry::GroupPage;
using telemetry::Phase;
using telemetry::RankPage;

constexpr double kSteps = 10;      // steps that may pass without a move
constexpr double kLongPhase = 30;  // times the limit of training
constexpr std::size_t kNamed = 8;  // ranks that a sentence lists
// Every process shows about once a second that it runs. It counts as frozen if it has not shown this for the first share of the
// time without progress, while another process has shown it within the last second.
constexpr double kFrozen = 0.8, kRuns = 0.5;

// "rank 3", "ranks 1, 4 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string names_of(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  if (ranks.size() > kNamed)
    return fmt::format("ranks {} and {} more", fmt::join(ranks.begin(), ranks.begin() + kNamed, ", "), ranks.size() - kNamed);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

std::string exchange_of(const GroupPage& group) {
  return fmt::format("{} {} of `{}` ({})", telemetry::name_of(group.exchange), group.begun.load(), group.name_text(),
                     telemetry::format_bytes(static_cast<std::uint64_t>(std::max(0.0, group.bytes.load()))));
}

// Describes the activity of a rank: the exchange in which it waits, or else its phase and its last exchange in each group.
std::string action_of(const RankPage& page) {
  std::string last;
  for (const GroupPage& group : page.groups) {
    if (group.waits != 0) return concat("waits in ", exchange_of(group));
    if (!group.name_text().empty() && group.begun > 0) last += concat(last.empty() ? "" : ", ", exchange_of(group));
  }
  return concat(telemetry::name_of(page.phase), " after step ", page.step.load(), last.empty() ? "" : ", last ", last);
}

// Returns the ranks whose processes do not run any more, while those of others do.
std::vector<int> ranks_frozen(const Pages& pages, double silent_s) {
  const std::int64_t now = telemetry::monotonic_ns();
  std::vector<double> ages;
  for (const RankPage* page : pages) ages.push_back(static_cast<double>(now - page->alive_ns) * 1e-9);
  std::vector<int> frozen;
  for (std::size_t rank = 0; rank < pages.size(); ++rank) {
    if (pages[rank]->alive_ns > 0 && ages[rank] > kFrozen * silent_s) frozen.push_back(static_cast<int>(rank));
  }
  return *std::min_element(ages.begin(), ages.end()) < kRuns * silent_s ? frozen : std::vector<int>();
}

std::vector<int> ranks_behind(const Pages& pages) {
  struct Begun {
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max(), most = 0;
  };
  const auto id_of = [](const GroupPage& group) { return std::pair(group.name_text(), group.members.load()); };
  std::map<std::pair<std::string, std::uint32_t>, Begun> begun;
  for (const RankPage* page : pages) {
    for (const GroupPage& group : page->groups) {
      Begun& all = begun[id_of(group)];
      all.fewest = std::min(all.fewest, group.begun.load());
      all.most = std::max(all.most, group.begun.load());
    }
  }
  const auto is_late = [&](const GroupPage& group) { return group.begun < begun[id_of(group)].most; };
  const auto waits_for_another = [&](const GroupPage& group) {
    return group.waits != 0 && begun[id_of(group)].fewest < group.begun;
  };
  std::vector<int> behind, culprits;
  for (std::size_t rank = 0; rank < pages.size(); ++rank) {
    const auto& groups = pages[rank]->groups;
    if (std::none_of(groups.begin(), groups.end(), is_late)) continue;
    behind.push_back(static_cast<int>(rank));
    if (std::none_of(groups.begin(), groups.end(), waits_for_another)) culprits.push_back(static_cast<int>(rank));
  }
  return culprits.empty() ? behind : culprits;
}

double limit_s(double stall_s, const RankPage& first) {
  const std::int64_t steps = first.step - first.start_step - 1;  // after the first
  const Phase phase = first.phase;
  if (first.first_step_ns == 0 || steps < 1 || (phase != Phase::training && phase != Phase::evaluating))
    return kLongPhase * stall_s;
  const double step_s = static_cast<double>(first.changed_ns - first.first_step_ns) * 1e-9 / static_cast<double>(steps);
  return std::max(stall_s, kSteps * step_s);
}

}  // namespace

Stall stall_of(const Pages& pages, double silent_s) {
  const std::vector<int> frozen = ranks_frozen(pages, silent_s);
  Stall stall{.what = fmt::format("no rank has moved for {:.3g} s", silent_s),
              .behind = frozen.empty() ? ranks_behind(pages) : frozen};
  const bool one = stall.behind.size() == 1;
  if (!stall.behind.empty()) {
    stall.what += concat("; ", names_of(stall.behind),
                         frozen.empty() ? ""
                         : one          ? " is frozen and"
                                        : " are frozen and",
                         one ? " holds" : " hold", " up the others");
  } else if (pages.size() > 1) {
    stall.what += "; all have begun the same exchanges";
  }
  // The sentence names the ranks that are behind before the others.
  std::map<std::pair<bool, std::string>, std::vector<int>> actions;
  for (int rank = 0; rank < static_cast<int>(pages.size()); ++rank) {
    const bool waited_for = std::find(stall.behind.begin(), stall.behind.end(), rank) != stall.behind.end();
    actions[{!waited_for, action_of(*pages[static_cast<std::size_t>(rank)])}].push_back(rank);
  }
  for (const auto& [action, who] : actions) stall.what += concat("; ", names_of(who), ": ", action.second);
  return stall;
}

std::optional<double> Movement::stalled_s(const Pages& pages, Clock::time_point now) {
  std::int64_t marks = 0;
  for (const RankPage* page : pages) marks += page->marks;
  if (marks != marks_) {
    marks_ = marks;
    changed_ = now;
  }
  const double silent_s = std::chrono::duration<double>(now - changed_).count();
  return silent_s >= limit_s(stall_s_, *pages.front()) ? std::optional(silent_s) : std::nullopt;
}

std::optional<Stall> StallWatch::look(const Pages& pages, Clock::time_point now) {
  if (told_) return std::nullopt;
  const std::optional<double> silent_s = movement_.stalled_s(pages, now);
  if (!silent_s) return std::nullopt;
  told_ = true;
  return stall_of(pages, *silent_s);
}

}  // namespace octet::app
