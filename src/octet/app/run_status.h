// The state of a run, from its folder and from its supervisor if that is on this machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/app/restart_budget.h"
#include "octet/app/stall.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/metrics.h"
#include "octet/telemetry/rank_page.h"
#include "octet/telemetry/stragglers.h"

namespace octet::app {

enum class RunState : std::uint8_t {
  running,
  waiting,    // its supervisor lives and will start the ranks again
  elsewhere,  // a process on another machine holds it and may still run
  done,
  ended,     // ended by itself before it was finished
  vanished,  // its process was killed and left no reason
};
std::string_view name_of(RunState state);

struct RankStatus {
  int rank = 0;
  telemetry::Phase phase = telemetry::Phase::starting;
  std::int64_t step = 0;
  double own_s = 0;        // of a step, without waits for other ranks; 0: not known yet
  double unchanged_s = 0;  // since phase or step changed
};

// Whether a rank has written this page, or its supervisor has sent it.
bool is_known(const telemetry::RankPage& page);

// The newest step of which all known ranks have a snapshot in memory.
struct NewestSnapshot {
  std::int64_t step = 0;
  double age_s = 0;
};
// Returns nothing if a rank has no snapshot.
std::optional<NewestSnapshot> newest_snapshot(const Pages& pages);

struct RunStatus {
  RunState state = RunState::ended;
  // The exit code of the last attempt that has ended and was not a refused start, or 75 if somebody asked the run to end after
  // that attempt. Without a supervisor the exit code of the last process that trained. Empty if neither is recorded.
  std::optional<int> code;
  std::string holder;                // "process 123 on node1, since ..."; "": nobody
  std::int64_t step = 0, steps = 0;  // finished, as far as is known; of all
  std::int64_t until = 0;            // the step after which this process ends, by --until; 0: the last one
  std::optional<double> loss;        // of the last logged step
  double tokens_per_s = telemetry::kUnknown;  // of all ranks, of the last logged step
  double eta_s = telemetry::kUnknown;         // at the last logged step, as the run has said it
  std::int64_t skipped_steps = 0;    // up to the last logged step
  std::int64_t checkpoint_step = 0;
  std::optional<double> checkpoint_age_s;
  std::string remote;            // checkpoint.remote, if a checkpoint was copied there; "": none
  std::int64_t remote_step = 0;  // of the newest one there
  std::optional<double> remote_age_s;
  std::optional<NewestSnapshot> snapshot;  // in memory, while the supervisor is on this machine
  std::vector<telemetry::StragglerRecord> stragglers;  // that the last start of the run has found and that have not recovered
  std::vector<telemetry::Attempt> attempts;            // without refused starts, unless nothing else is known about the run
  std::optional<RestartBudget::Use> restarts;          // if a supervisor has said how many it allows
  std::vector<RankStatus> ranks;  // while the supervisor is on this machine
};

// Throws Error{data} if this is not the folder of a run, or a file cannot be read.
RunStatus status_of(const std::filesystem::path& run_folder);

}  // namespace octet::app
