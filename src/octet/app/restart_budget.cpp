#include "octet/app/restart_budget.h"

#include <algorithm>
#include <array>

#include "octet/base/require.h"

namespace octet::app {
namespace {

constexpr double kHour = 3600;
constexpr std::array kWaits = {0.0, 5.0, 20.0, 60.0};  // seconds before the first restart without progress, the second, ...

}  // namespace

bool may_pass(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
    case ExitCode::config:
    case ExitCode::does_not_fit:
    case ExitCode::preempted:
    case ExitCode::data:
    case ExitCode::not_finite:
    case ExitCode::interrupted:
      return false;
    case ExitCode::internal:
    case ExitCode::peer:
    case ExitCode::stalled:
      break;
  }
  return true;
}

RestartBudget::Decision RestartBudget::judge(const End& end) {
  if (end.asked || !may_pass(end.code)) return {};
  if (end.saved_step > latest_step_) without_progress_ = 0;
  latest_step_ = std::max(latest_step_, end.saved_step);
  while (!restarts_.empty() && end.at_s - restarts_.front() >= kHour) restarts_.pop_front();
  if (without_progress_ >= limits_.restarts)
    return {.why =
                concat(without_progress_, " restarts in a row brought no newer checkpoint, and --restarts = ", limits_.restarts)};
  if (limits_.per_hour > 0 && static_cast<int>(restarts_.size()) >= limits_.per_hour)
    return {.why = concat(restarts_.size(), " restarts in an hour, and --restarts-per-hour = ", limits_.per_hour)};
  const double wait_s = kWaits[std::min(static_cast<std::size_t>(without_progress_), kWaits.size() - 1)];
  ++without_progress_;
  restarts_.push_back(end.at_s);
  return {.restarts = true, .wait_s = wait_s};
}

}  // namespace octet::app
