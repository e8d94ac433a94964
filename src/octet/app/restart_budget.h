// Decides whether a run that has ended starts again, and when.
//
// The exit code, and sometimes the cause of the end, says whether starting again can help, and how often. Restarts without
// progress are counted: an attempt that has saved a later step than all attempts before, or has continued from one, clears the
// counts. Each restart waits longer than the previous one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "octet/telemetry/attempts.h"

namespace octet::app {

struct RestartLimits {
  int restarts = 3;   // in a row without progress
  int per_hour = 20;  // 0: no limit
};

// What is known about an end besides its code.
enum class Cause : std::uint8_t {
  unknown,
  storage,     // with code 76: a file could not be read, for a reason that may pass
  memory,      // with code 137: the kernel killed the rank because the host's memory was used up
  wrong_bits,  // with code 79: a rank's state differs from what most ranks hold. The gate's code 79 has no cause.
};
inline constexpr int kCauses = 4;

class RestartBudget {
 public:
  explicit RestartBudget(RestartLimits limits) : limits_(limits) {}

  // How an attempt ended.
  struct End {
    int code = 0;                 // as ProcessGroup::run() returns it
    Cause cause = Cause::unknown;
    bool asked = false;           // a person or a scheduler asked it to end
    bool trained = false;         // an attempt of the job has finished a step, so the run has fitted once
    std::int64_t saved_step = 0;  // of the last checkpoint that the attempt has saved; 0: none
    std::int64_t from_step = 0;   // from which the attempt went on: of a checkpoint, or of a snapshot in memory
    double at_s = 0;              // the time, on any clock that goes on
  };
  struct Decision {
    bool restarts = false;
    double wait_s = 0;
    int code = 0;     // with which the run ends if it does not start again
    std::string why;  // a clause: "it has used up ..."; "" if the code itself says why
  };
  Decision judge(const End& end);
  // Counts a restart that another node has decided. Call it before the restarts that this object judges.
  void count(const End& end);
  struct Use {
    int restarts = 0;  // without progress
    int in_hour = 0;
    std::optional<std::int64_t> since_step;  // the step after which there was no progress; nothing: there was no restart
  };
  // Returns how much is used at the time `at_s` of a run whose newest checkpoint, or the snapshot from which it continued, is of
  // `step`.
  Use use(std::int64_t step, double at_s) const;

 private:
  void note_progress(const End& end);
  RestartLimits limits_;
  std::array<int, kCauses> without_progress_{};
  std::optional<std::int64_t> latest_step_;  // that any attempt has saved or gone on from
  std::deque<double> restarts_;   // of the last hour
};

// Returns the budget after these attempts of one job, which must be in order. `at_s` is now, on the clock of End::at_s.
RestartBudget budget_after(const std::vector<telemetry::Attempt>& attempts, RestartLimits limits, double at_s);

// Returns how many restarts without progress may follow ends with this code and cause, if RestartLimits allow as many. Starting
// again can help after a crash, a kill, a lost peer and an internal error. It cannot help after success, a request, an invalid
// configuration, missing data, a model that does not fit, or a loss that is not finite. RestartBudget itself makes one
// exception: a model that has fitted before.
int most_restarts(int code, Cause cause);

}  // namespace octet::app
