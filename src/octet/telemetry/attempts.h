// The attempts of a supervised run. An attempt is one start of all ranks. OUT/attempts/00000003.json records the third one;
// `octet status` and `octet report` read it. Numbers only grow, even when the supervisor is started again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "octet/base/process_identity.h"

namespace octet::telemetry {

// A host that is there and runs no ranks because of a fault.
struct ExcludedHost {
  int node = 0;
  std::string host, why;
  bool operator==(const ExcludedHost&) const = default;
};

struct Attempt {
  std::int64_t number = 0;
  int ranks = 0;
  std::string job;                 // a random name that all attempts of one `octet launch` share
  std::vector<std::string> nodes;  // names of the hosts that run ranks, in the order of the ranks; empty: one host
  int coordinator = 0;             // the index of the node whose supervisor wrote this, and where others reach it
  std::string coordinator_host;
  std::string started;         // UTC
  ProcessIdentity supervisor;  // and the descriptor of its telemetry::RankPages
  int pages = -1;
  // How often the run may restart without progress, and in an hour (0: no limit). -1: the file is of an earlier version.
  int most_restarts = -1, most_per_hour = -1;
  std::vector<ExcludedHost> excluded;
  // Known after the attempt's first step:
  std::int64_t from_step = 0;  // the step from which rank 0 went on, or the lowest one, if a rollback went below it
  std::string from;            // "memory", "local disk" or "storage", where it found the state of that step; "": it began with none
  // Known at the attempt's end:
  std::string ended;  // UTC; "": it has not ended, or no supervisor was left to record the end
  int code = 0;
  std::string what;            // which rank failed, and how
  std::int64_t last_step = 0;  // finished
  std::int64_t steps = 0;      // finished, those after a rollback counted again; 0 in files of earlier versions
  // The step of the newest checkpoint; 0 if there is no checkpoint, or if nobody knows of one.
  std::int64_t checkpoint_step = 0;
  std::string next;  // "restarts in 5 s", "stops: ...", kAskedToEnd; "" after success
  // Times of rank 0, in seconds since the ranks were started: when it entered each phase, and when its first step ended.
  // `last_step` is when its last step ended, if a fault ended the attempt between steps. `stop` is the time from the moment at
  // which the fault was noticed until all ranks had ended, and `total` the length of the attempt. `waited` is the time since the
  // end of the attempt before, if the same supervisor ordered both.
  std::map<std::string, double> seconds;
};

// The `next` of an attempt after which somebody asked the run to end before it restarted. The run then ends with code 75.
inline constexpr const char* kAskedToEnd = "stops: asked to end before the next attempt";
// The `next` of an attempt that ended because some hosts were asked to leave, while enough others stay.
inline constexpr const char* kWithoutTheAsked = "restarts without the hosts that were asked to leave";
// Whether the attempt runs, or its run continues after it.
bool goes_on(const Attempt& attempt);
// Returns the exit code of a run that has ended with this attempt.
int code_of_run(const Attempt& last);

class Attempts {
 public:
  explicit Attempts(const std::filesystem::path& run_folder) : folder_(run_folder / "attempts") {}

  // Gives the attempt the next free number, which is at least the one that it has, and writes it down. Throws Error{internal} or
  // Error{data} "PATH: REASON".
  void begin(Attempt& attempt) const;
  // Writes the attempt down under its own number. Returns false if the number is taken. If the disk has no room, the number is
  // taken, but the file does not count as an attempt until the next write().
  bool begin_as(const Attempt& attempt) const;
  void write(const Attempt& attempt) const;
  // Reserves room on the disk, in attempts/.room, so that write() can record the end of a run that a full disk has ended.
  // free_room() frees it. keep_room() returns false if room was reserved already. Both throw SystemError.
  bool keep_room() const;
  void free_room() const;
  // Returns all attempts in the order of their numbers. Leaves out files that are not attempts, with a warning the first time.
  // Throws SystemError if the folder or a file cannot be read; a folder that does not exist has no attempts.
  std::vector<Attempt> read() const;
  // Returns the attempt with this number, whose file exists. Waits up to wait_s for its text, and returns nothing if the file
  // is not an attempt even then. Throws SystemError if the file cannot be read.
  std::optional<Attempt> find(std::int64_t number, double wait_s) const;
  std::filesystem::path path_of(std::int64_t number) const;

 private:
  std::filesystem::path folder_;
  mutable std::set<std::filesystem::path> warned_;  // files that are no attempts
};

// Leaves out starts that were refused with code 2 before they changed the run. A restart that is refused ends its job, so it
// stays.
std::vector<Attempt> without_refused(const std::vector<Attempt>& attempts);

// The attempt to which this process belongs, from the supervisor's variable OCTET_ATTEMPT; {} without a supervisor.
struct OwnAttempt {
  std::string job;
  std::int64_t number = 0;
};
OwnAttempt own_attempt();
// Returns the earlier attempts of this process's job, in their order. Throws like Attempts::read().
std::vector<Attempt> earlier_attempts(const std::filesystem::path& run_folder);
// "OCTET_ATTEMPT=...", for the environment of a rank.
std::string attempt_variable(const OwnAttempt& attempt);

// Returns the text of the attempt's file.
std::string json_text_of(const Attempt& attempt);

// How the time of a run was spent, from the start of its first attempt to the end of its last, in seconds.
struct TimeOfAttempts {
  double all = 0;
  double kept = 0;       // steps that the run still has
  double again = 0;      // steps that were lost with an attempt and repeated
  double unnoticed = 0;  // from the last step before a fault until the fault was noticed
  double start = 0;      // until the first step of each attempt
  double stop = 0;       // from then on until all ranks had ended
  double between = 0;    // no ranks ran, or their supervisor was killed with them and recorded nothing
  double productive() const { return all > 0 ? kept / all : 0; }
};
// Returns the parts of one attempt. `kept_step` is the last of its steps that the run still has. `all` and `between` are 0.
TimeOfAttempts time_of(const Attempt& attempt, std::int64_t kept_step);
// Returns the sum over the attempts, which must be in order. Leaves out an attempt that has not ended.
TimeOfAttempts time_of(const std::vector<Attempt>& attempts);
// Returns the cost, in seconds, of the end of the attempt before attempt i: the time of the steps that attempt i repeats,
// whichever attempts did them before, and the time from the last step before the fault until the first step of attempt i. If
// the last step's time is not known, the moment at which the fault was noticed takes its place. Nothing if the cost is not known.
std::optional<double> lost_before(const std::vector<Attempt>& attempts, std::size_t i);
// Returns the last step of attempt i that the run still has after all of these attempts. An attempt that ended before it
// continued from a step has taken none away.
std::int64_t kept_step(std::span<const Attempt> attempts, std::size_t i);
// Returns how many steps of attempt i were lost and repeated.
std::int64_t lost_steps(std::span<const Attempt> attempts, std::size_t i);

}  // namespace octet::telemetry
