#include "octet/app/run_status.h"

#include <chrono>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/checkpoint/run_lock.h"
#include "octet/checkpoint/steps.h"
#include "octet/telemetry/jsonl.h"
#include "octet/train/restore.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

// Sets ranks and snapshot.
void read_ranks(const telemetry::Attempt& attempt, RunStatus& status) {
  const auto pages = telemetry::RankPages::of(attempt.supervisor.pid, attempt.pages, attempt.ranks);
  if (!pages) return;
  status.snapshot = newest_snapshot(pages->first(attempt.ranks));
  const std::int64_t now = telemetry::monotonic_ns();
  for (int rank = 0; rank < attempt.ranks; ++rank) {
    const telemetry::RankPage& page = pages->page(rank);
    const std::int64_t changed = page.changed_ns;
    status.ranks.push_back({.rank = rank,
                            .phase = page.phase,
                            .step = page.step,
                            .own_s = page.own_s,
                            .unchanged_s = changed > 0 ? static_cast<double>(now - changed) * 1e-9 : 0});
  }
}

std::optional<double> age_s(const fs::path& path) {
  std::error_code unknown;
  const fs::file_time_type written = fs::last_write_time(path, unknown);
  if (unknown) return std::nullopt;
  // The clock of a file server may be ahead of this machine's.
  return std::max(0.0, std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count());
}

void read_checkpoints(const fs::path& folder, RunStatus& status) {
  const std::vector<checkpoint::StepDirectory> there = checkpoint::find_checkpoints(folder / "checkpoints");
  if (there.empty()) return;
  status.checkpoint_step = there.front().step;
  status.checkpoint_age_s = age_s(there.front().path);
}

void read_remote(const fs::path& folder, RunStatus& status) {
  const fs::path path = folder / "remote.json";
  if (!path_exists(path)) return;
  const nlohmann::json remote = parse_json(read_file(path), path.string());
  try {
    status.remote = remote.value("url", "");
    status.remote_step = remote.value("step", std::int64_t{0});
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::data, path.string(),
         ": not an object with a text `url` and a number `step`. Remove it; the run writes it again");
  }
  status.remote_age_s = age_s(path);
}

// Whether the process that trained last ended after the last attempt whose end a supervisor has recorded. Clocks of two hosts
// may differ, so the times decide only between different jobs.
bool is_newer(const telemetry::RunInfo& info, const telemetry::Attempt& last_ended) {
  if (!info.job.empty() && info.job == last_ended.job) return !info.ended.empty() && info.attempt > last_ended.number;
  return info.ended > last_ended.ended;
}

// Sets step, steps, loss, speed and stragglers, and the code if the process that trained ended after `last_ended`.
void read_metrics(const fs::path& folder, const telemetry::Attempt& last_ended, RunStatus& status) {
  if (path_exists(folder / "run.json")) {
    const telemetry::RunInfo info = telemetry::read_run_info(folder / "run.json");
    status.steps = info.steps;
    status.until = info.until;
    // A file of an earlier version may have an end and no code.
    if (is_newer(info, last_ended)) status.code = info.code >= 0 ? std::optional(static_cast<int>(info.code)) : std::nullopt;
    if (const fs::path path = folder / "stragglers.jsonl"; path_exists(path))
      status.stragglers = standing(telemetry::read_jsonl<telemetry::StragglerRecord>(path).records, info.started);
  }
  status.step = status.checkpoint_step;
  if (!path_exists(folder / "metrics.jsonl")) return;
  const auto metrics = telemetry::last_record<telemetry::StepMetrics>(folder / "metrics.jsonl");
  if (!metrics) return;
  status.step = std::max(status.step, metrics->step);
  status.loss = metrics->loss;
  status.skipped_steps = metrics->skipped_steps;
  status.tokens_per_s = metrics->tokens_per_s;
  status.eta_s = metrics->eta_s;
}

// Starts that were refused count only if nothing else is known about the run.
std::vector<telemetry::Attempt> attempts_that_count(const std::vector<telemetry::Attempt>& attempts, const fs::path& folder) {
  std::vector<telemetry::Attempt> result = telemetry::without_refused(attempts);
  const bool has_run = !result.empty() || path_exists(folder / "run.json");
  return has_run ? result : attempts;
}

// Sets how much of the restart budget the newest job has used.
void read_restarts(RunStatus& status) {
  if (status.attempts.empty() || status.attempts.back().most_restarts < 0) return;
  const telemetry::Attempt& last = status.attempts.back();
  std::vector<telemetry::Attempt> of_job = status.attempts;
  std::erase_if(of_job, [&](const telemetry::Attempt& attempt) { return attempt.job != last.job; });
  const double now_s = static_cast<double>(telemetry::monotonic_ns()) * 1e-9;
  status.restarts = budget_after(of_job, {.restarts = last.most_restarts, .per_hour = last.most_per_hour}, now_s)
                        .use(std::max(status.checkpoint_step, last.from_step), now_s);
}

// Returns the attempt whose ranks a supervisor of this machine has started and that has not ended, or null.
const telemetry::Attempt* current_of(const RunStatus& status) {
  for (auto attempt = status.attempts.rbegin(); attempt != status.attempts.rend(); ++attempt) {
    if (attempt->ended.empty() && fate_of(attempt->supervisor) == Fate::runs) return &*attempt;
  }
  return nullptr;
}

// Whether a killed rank of the last attempt has left this lock, and the attempt has ended for good.
bool is_left_over(const checkpoint::LockHolder& lock, const telemetry::Attempt& last) {
  const bool over = !last.ended.empty() && !last.next.starts_with("restarts");
  return over && !last.job.empty() && lock.attempt.job == last.job && lock.attempt.number == last.number;
}

// Whether the run has exported its last weights, after its last step or when evaluation.patience ended it earlier. If the run
// continued from there and was stopped, its newest checkpoint is newer than the export.
bool has_exported(const RunStatus& status, const fs::path& folder) {
  const std::vector<checkpoint::StepDirectory> saved = checkpoint::find_checkpoints(folder / "checkpoints");
  for (const fs::path& file : {folder / "model/config.json", folder / "adapter/adapter_config.json"}) {
    if (saved.empty() || !path_exists(file)) continue;
    if (status.checkpoint_step >= status.steps) return true;
    std::error_code unknown;
    if (fs::last_write_time(file, unknown) >= fs::last_write_time(saved.front().path, unknown) && !unknown) return true;
  }
  return false;
}

// `last` is the newest attempt that counts, or null.
RunState state_of(const RunStatus& status, const telemetry::Attempt* last, const fs::path& folder,
                  const std::optional<checkpoint::LockHolder>& lock) {
  if (lock && lock->code) return state_of(status, last, folder, std::nullopt);  // its process has told how it ended
  const Fate supervisor = last ? fate_of(last->supervisor) : Fate::ended;
  const Fate holder = lock && !(last && is_left_over(*lock, *last)) ? fate_of(lock->process) : Fate::ended;
  if (holder == Fate::runs || current_of(status)) return RunState::running;
  if (supervisor == Fate::runs && last->next.starts_with("restarts")) return RunState::waiting;
  const bool unfinished = last && (last->ended.empty() || last->next.starts_with("restarts"));
  if (holder == Fate::unknown || (supervisor == Fate::unknown && unfinished)) return RunState::elsewhere;
  // A run that failed later may have exported a model before.
  if (status.code.value_or(0) == 0 && status.steps > 0 && has_exported(status, folder)) return RunState::done;
  // A rank that was killed leaves its lock. If it is younger than the last attempt's end, nobody has told how that run ended. An
  // attempt that came to load held the lock itself, so that of another process is younger, whatever a clock says.
  if (!last) return lock ? RunState::vanished : RunState::ended;
  const bool younger = lock && !is_left_over(*lock, *last) && (last->seconds.contains("loading") || lock->since > last->ended);
  if (unfinished || younger) return RunState::vanished;
  return last->code == 0 && status.code.value_or(0) == 0 ? RunState::done : RunState::ended;
}

}  // namespace

std::string_view name_of(RunState state) {
  switch (state) {
    case RunState::running:
      return "running";
    case RunState::waiting:
      return "about to start again";
    case RunState::elsewhere:
      return "held by another machine";
    case RunState::done:
      return "done";
    case RunState::ended:
      return "ended";
    case RunState::vanished:
      return "vanished";
  }
  return "";
}

bool is_known(const telemetry::RankPage& page) { return page.entered_ns[0] > 0 || page.marks > 0; }

std::optional<NewestSnapshot> newest_snapshot(const Pages& pages) {
  std::optional<NewestSnapshot> newest;
  const std::int64_t now = telemetry::monotonic_ns();
  for (const telemetry::RankPage* page : pages) {
    if (!is_known(*page)) continue;
    const std::int64_t step = page->snapshot_step;
    if (step == 0) return std::nullopt;
    const double age_s = static_cast<double>(now - page->snapshot_ns) * 1e-9;
    if (!newest || step < newest->step || (step == newest->step && age_s < newest->age_s))
      newest = {.step = step, .age_s = age_s};
  }
  return newest;
}

RunStatus status_of(const fs::path& folder) {
  constexpr const char* kWanted = "the folder of a run";
  train::demand_one(folder, kWanted);
  const std::vector<telemetry::Attempt> all = telemetry::Attempts(folder).read();
  RunStatus status{.attempts = attempts_that_count(all, folder)};
  read_checkpoints(folder, status);
  read_remote(folder, status);
  telemetry::Attempt last_ended;
  for (const telemetry::Attempt& attempt : status.attempts) {
    if (attempt.ended.empty()) continue;
    last_ended = attempt;
    status.code = telemetry::code_of_run(attempt);
  }
  read_metrics(folder, last_ended, status);
  demand(!all.empty() || status.steps > 0, ExitCode::data, folder.string(), ": no attempts/ and no run.json here; give ",
         kWanted);
  read_restarts(status);
  const auto lock = checkpoint::lock_holder(folder);
  if (lock) status.holder = concat("process ", lock->process.pid, " on ", lock->process.host, ", since ", lock->since);
  if (lock && lock->code && lock->since > last_ended.ended) status.code = lock->code;
  status.state = state_of(status, status.attempts.empty() ? nullptr : &status.attempts.back(), folder, lock);
  if (const telemetry::Attempt* const current = current_of(status)) read_ranks(*current, status);
  for (const RankStatus& rank : status.ranks) status.step = std::max(status.step, rank.step);
  return status;
}

}  // namespace octet::app
