// `octet launch --supervise`: keeps a run going. After a crash, a kill or a lost peer it ends the other ranks and starts all of
// them again, and they resume from the newest checkpoint. restart_budget.h says when it gives up, telemetry/attempts.h and
// rank_logs.h what it leaves in the run folder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/app/local_ranks.h"
#include "octet/app/process_group.h"
#include "octet/app/rank_logs.h"
#include "octet/app/restart_budget.h"
#include "octet/base/clock.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

struct SupervisorOptions {
  int ranks = 1;
  std::vector<std::string> command;  // "train RUN.toml ..."
  std::filesystem::path run_folder;  // where it writes
  double grace_s = 2;                // what the other ranks have to end by themselves after one failed
  RestartLimits limits;
  // As of ProcessGroupOptions; `note` is also called with what the supervisor does.
  std::function<void(int rank, StandardStream stream, std::string_view line)> output;
  std::function<void(std::string_view sentence)> note;
};

class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options);
  // Returns when the run is done, was asked to end, or cannot go on: the exit code of the last attempt.
  int run();

 private:
  int run_attempt(telemetry::Attempt& attempt, bool& asked);
  ProcessGroupOptions group_options(const telemetry::Attempt& attempt);
  // Reports the first step after a fault.
  void say_recovered(const telemetry::Attempt& attempt);
  void record_times(const ProcessGroup& group, telemetry::Attempt& attempt);
  // Calls a function that writes into the run folder, and returns whether it could. A full disk must not end the run.
  bool record(const std::function<void()>& write);
  // Waits; false if a signal asks to end meanwhile.
  bool pause(double seconds);
  void say_all_attempts() const;

  SupervisorOptions options_;
  LocalToken token_;
  SignalPipe signals_;
  telemetry::Attempts attempts_;
  RankLogs logs_;
  telemetry::RankPages pages_;
  std::int64_t begin_ns_ = 0;                   // of the attempt
  std::optional<Clock::time_point> failed_at_;  // of the attempt before, until the run is back
  bool has_saved_ = false;                      // an attempt has saved a checkpoint
  std::string what_;                            // the sentence about the failure of this attempt
  std::vector<telemetry::Attempt> ended_;
};

}  // namespace octet::app
