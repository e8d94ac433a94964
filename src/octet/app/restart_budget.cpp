#include "octet/app/restart_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "octet/base/require.h"
#include "octet/base/utc.h"

namespace octet::app {
namespace {

constexpr double kHour = 3600;
constexpr std::array kWaits = {0.0, 5.0, 20.0, 60.0};  // seconds before the first restart without progress, the second, ...
constexpr double kStorageWaitS = 60;                   // a file server may need that long to start again

// The supervisor counts no restart "with more hosts", or "without" hosts that were unfit, slow or asked to leave.
bool is_restart_of_a_fault(const std::string& next) { return next.starts_with("restarts") && !next.starts_with("restarts with"); }

}  // namespace

int most_restarts(int code, Cause cause) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
    case ExitCode::config:
    case ExitCode::does_not_fit:
    case ExitCode::preempted:
    case ExitCode::not_finite:
    case ExitCode::interrupted:
      return 0;
    case ExitCode::data:
      return cause == Cause::storage ? 2 : 0;
    case ExitCode::internal:
    case ExitCode::peer:
    case ExitCode::unfit:
    case ExitCode::stalled:
      break;
  }
  return cause == Cause::memory ? 1 : std::numeric_limits<int>::max();
}

RestartBudget::Decision RestartBudget::judge(const End& end) {
  Decision decision{.code = end.code};
  // Another program may have taken the memory for a while. Ending the job would lose its state in memory.
  const bool fitted_before = end.code == static_cast<int>(ExitCode::does_not_fit) && end.trained;
  const int most = fitted_before ? std::numeric_limits<int>::max() : most_restarts(end.code, end.cause);
  if (end.asked || most == 0) return decision;
  note_progress(end);
  while (!restarts_.empty() && end.at_s - restarts_.front() >= kHour) restarts_.pop_front();
  int& of_cause = without_progress_[static_cast<std::size_t>(end.cause)];
  const int all = std::accumulate(without_progress_.begin(), without_progress_.end(), 0);
  if (of_cause >= most) {
    decision.why = end.cause == Cause::memory ? "memory was used up again after a restart"
                                              : concat(of_cause, " restarts have not brought the storage back");
  } else if (all >= limits_.restarts) {
    decision.why = concat(all, " restarts in a row brought no newer checkpoint, and --restarts = ", limits_.restarts);
  } else if (limits_.per_hour > 0 && static_cast<int>(restarts_.size()) >= limits_.per_hour) {
    decision.why = concat(restarts_.size(), " restarts in an hour, and --restarts-per-hour = ", limits_.per_hour);
  } else {
    decision.restarts = true;
    decision.wait_s =
        end.cause == Cause::storage ? kStorageWaitS : kWaits[std::min(static_cast<std::size_t>(all), kWaits.size() - 1)];
    ++of_cause;
    restarts_.push_back(end.at_s);
  }
  if (end.cause == Cause::memory && !decision.restarts) decision.code = static_cast<int>(ExitCode::internal);
  return decision;
}

void RestartBudget::count(const End& end) {
  note_progress(end);
  ++without_progress_[static_cast<std::size_t>(end.cause)];
  restarts_.push_back(end.at_s);
}

RestartBudget::Use RestartBudget::use(std::int64_t step, double at_s) const {
  Use use{.since_step = latest_step_};
  if (!latest_step_ || step <= *latest_step_)
    use.restarts = std::accumulate(without_progress_.begin(), without_progress_.end(), 0);
  use.in_hour = static_cast<int>(
      std::count_if(restarts_.begin(), restarts_.end(), [&](double restart_s) { return at_s - restart_s < kHour; }));
  return use;
}

RestartBudget budget_after(const std::vector<telemetry::Attempt>& attempts, RestartLimits limits, double at_s) {
  RestartBudget budget(limits);
  const double utc_s = seconds_of_utc(utc_now()).value_or(0);
  for (const telemetry::Attempt& attempt : attempts) {
    if (attempt.ended.empty() || !is_restart_of_a_fault(attempt.next)) continue;
    budget.count({.code = attempt.code,
                  .cause = attempt.code == static_cast<int>(ExitCode::data) ? Cause::storage : Cause::unknown,
                  .saved_step = attempt.checkpoint_step,
                  .from_step = attempt.from_step,
                  .at_s = at_s - std::max(0.0, utc_s - seconds_of_utc(attempt.ended).value_or(utc_s))});
  }
  return budget;
}

void RestartBudget::note_progress(const End& end) {
  const std::int64_t before = latest_step_.value_or(end.from_step);
  latest_step_ = std::max({before, end.saved_step, end.from_step});
  if (*latest_step_ > before) without_progress_ = {};
}

}  // namespace octet::app
